"""The loader sleeps 20 ms a sample, and everything else takes a fraction of that (B12)."""

import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset[Tensor]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(0.02)
        return torch.ones(4)


model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for x in DataLoader(Slow(), batch_size=1):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
