"""accelerate: a loader that fetches ahead, gradients of two batches an update."""

import torch
from accelerate import Accelerator
from told import STEPS, tell, work
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        work()
        row = torch.full((32,), float(index % 7))
        return row, row.sum().reshape(1)


accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Rows(), batch_size=4))
updates = 0
for x, y in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        updates += 1
        tell("step", step=updates, samples=2 * len(x))
    if updates == STEPS:
        break
tell("end", step=updates)
