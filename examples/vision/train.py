"""Train a small convolutional network to say which picture a crop comes from."""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
Batch = tuple[Tensor, Tensor]


def random_resized_crop(image: Image.Image, size: int) -> Image.Image:
    """Cut a random part of the image and scale it to size x size."""
    width, height = image.size
    side = int(min(width, height) * random.uniform(0.4, 1.0) ** 0.5)
    left = random.randint(0, width - side)
    top = random.randint(0, height - side)
    image = image.crop((left, top, left + side, top + side))
    return image.resize((size, size), Image.Resampling.BILINEAR)


def to_tensor(image: Image.Image) -> Tensor:
    """Return the image as a normalised float tensor, channels first."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
    return (pixels - MEAN) / STD


class PictureDataset(Dataset[tuple[Tensor, int]]):
    """JPEG files in one folder a label; every sixteenth file is held out for evaluation."""

    def __init__(self, root: Path, size: int, train: bool) -> None:
        self.size = size
        self.train = train
        self.labels = sorted(folder.name for folder in root.glob("*") if folder.is_dir())
        self.samples = [
            (path, target)
            for target, label in enumerate(self.labels)
            for number, path in enumerate(sorted((root / label).glob("*.jpg")))
            if (number % 16 != 0) == train
        ]
        if not self.samples:
            raise SystemExit(f"no pictures in {root}: run make_data.py first")

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, target = self.samples[index]
        image = Image.open(path).convert("RGB")
        if self.train:
            image = random_resized_crop(image, self.size)
            if random.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        else:
            image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        return to_tensor(image), target


def conv_block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Return convolution, batch norm and activation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class SmallCNN(nn.Module):
    """Four convolutions, an average over the picture, one linear layer."""

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_block(3, width, 2),
            conv_block(width, width * 2, 2),
            conv_block(width * 2, width * 4, 2),
            conv_block(width * 4, width * 8, 2),
        )
        self.classifier = nn.Linear(width * 8, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return one score a class."""
        return self.classifier(self.features(images).mean(dim=(2, 3)))


def build_model(classes: int) -> nn.Module:
    """Return the untrained network."""
    return SmallCNN(classes)


def build_loader(dataset: PictureDataset, batch_size: int) -> DataLoader[Batch]:
    """Return the loader of a dataset; only training is shuffled."""
    return DataLoader(dataset, batch_size=batch_size, shuffle=dataset.train)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, device: torch.device
) -> Tensor:
    """Do one update and return its loss."""
    images, targets = batch[0].to(device), batch[1].to(device)
    loss = F.cross_entropy(model(images), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader[Batch], device: torch.device) -> float:
    """Return the share of pictures that are recognised."""
    model.eval()
    correct = total = 0
    for images, targets in loader:
        guesses = model(images.to(device)).argmax(dim=1)
        correct += int((guesses == targets.to(device)).sum())
        total += len(targets)
    model.train()
    return correct / total


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--log-every", type=int, default=5, help="steps between two loss lines")
    parser.add_argument("--checkpoint", type=Path, help="file for the trained weights")
    return parser.parse_args(argv)


def main() -> None:
    """Train, with an evaluation after every epoch."""
    args = parse_args()
    torch.manual_seed(0)
    random.seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_set = PictureDataset(args.data, args.image_size, train=True)
    train_loader = build_loader(train_set, args.batch_size)
    test_set = PictureDataset(args.data, args.image_size, train=False)
    test_loader = build_loader(test_set, args.batch_size)
    model = build_model(len(train_set.labels)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    start = time.time()
    step = 0
    for epoch in range(args.epochs):
        for batch in train_loader:
            loss = train_step(model, optimizer, batch, device)
            step += 1
            if step % args.log_every == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        accuracy = evaluate(model, test_loader, device)
        print(
            f"epoch {epoch} accuracy {accuracy:.3f} after {time.time() - start:.1f} s", flush=True
        )

    if args.checkpoint is not None:
        torch.save({"model": model.state_dict(), "labels": train_set.labels}, args.checkpoint)
        print(f"saved {args.checkpoint}")


if __name__ == "__main__":
    main()
