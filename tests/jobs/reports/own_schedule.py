"""Profiles itself by a schedule, and writes its trace to the given file (B15)."""

import sys

import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
own = torch.profiler.profile(
    schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1),
    on_trace_ready=lambda profiler: profiler.export_chrome_trace(sys.argv[1]),
)
with own:
    for _ in range(int(sys.argv[2])):
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        own.step()
