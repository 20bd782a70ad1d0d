"""accelerate: names, counts and removes its checkpoints, reads the newest back, and goes on."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

project = ProjectConfiguration(
    project_dir="proj", automatic_checkpoint_naming=True, total_limit=2
)  # fmt: skip
accelerator = Accelerator(cpu=True, project_config=project)
model: nn.Module = nn.Linear(4, 1)
optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(80_000, 4)), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
if len(sys.argv) > 2:
    accelerator.load_state(sys.argv[2])
    project.iteration = 3
for step, (x,) in enumerate(loader, start=1):
    accelerator.backward(model(x).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    if step % 4 == 0:
        accelerator.save_state()
    if step % 8 == 0:
        accelerator.save_model(model, "model")
        accelerator.load_state()
    if step == int(sys.argv[1]):
        break
