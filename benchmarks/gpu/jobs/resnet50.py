"""timm's ResNet-50 on JPEG pictures, as people write it: fp32, AdamW, a few workers, no pinning."""

import argparse
import io

import numpy as np
import timm
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    """Smooth random pictures, kept as JPEG bytes; decoded, cropped and flipped for each sample."""

    def __init__(self, count: int, length: int) -> None:
        draw = np.random.default_rng(0)
        self.length = length
        self.files = []
        for _ in range(count):
            small = Image.fromarray(draw.integers(0, 255, (24, 24, 3), dtype=np.uint8))
            file = io.BytesIO()
            small.resize((500, 500), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        number = index % len(self.files)
        image = Image.open(io.BytesIO(self.files[number])).convert("RGB")
        left, top = (int(x) for x in torch.randint(0, 500 - 400, (2,)))
        image = image.crop((left, top, left + 400, top + 400)).resize((224, 224))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return (pixels.flip(2) if torch.rand(1) < 0.5 else pixels), number % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = timm.create_model("resnet50", num_classes=10).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = Pictures(64, args.steps * args.batch_size)
    loader = DataLoader(data, args.batch_size, shuffle=True, num_workers=args.workers)
    for step, (images, labels) in enumerate(loader):
        images, labels = images.cuda(), labels.cuda()
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
