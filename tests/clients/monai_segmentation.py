"""MONAI: its own dictionary transforms, U-Net and Dice loss; batches hold MetaTensors."""

import numpy
import torch
from monai.data import DataLoader, Dataset
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from monai.transforms import Compose, EnsureTyped, Lambdad, RandFlipd, RandGaussianNoised
from told import STEPS, tell


def picture(seed: int) -> numpy.ndarray:
    """Return a disc in noise, one channel."""
    at = numpy.random.default_rng(seed)
    x, y = numpy.mgrid[:32, :32]
    disc = (x - at.integers(8, 24)) ** 2 + (y - at.integers(8, 24)) ** 2 < 36
    return (disc + at.normal(0, 0.2, disc.shape))[None].astype("float32")


steps = Compose(
    [
        Lambdad(["image"], picture),
        Lambdad(["label"], lambda seed: (picture(seed) > 0.5).astype("float32")),
        EnsureTyped(["image", "label"]),
        RandFlipd(["image", "label"], prob=0.5),
        RandGaussianNoised(["image"], prob=0.5),
    ]
)
dataset = Dataset([{"image": n, "label": n} for n in range(20_000)], steps)
loader = DataLoader(dataset, batch_size=4, shuffle=True)
model = UNet(spatial_dims=2, in_channels=1, out_channels=1, channels=(4, 8, 16), strides=(2, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_of = DiceLoss(sigmoid=True)
for step, batch in enumerate(loader, start=1):
    optimizer.zero_grad()
    loss_of(model(batch["image"]), batch["label"]).backward()
    optimizer.step()
    tell("step", step=step, samples=len(batch["image"]))
    if step == STEPS:
        break
tell("end", step=STEPS)
