"""Rollouts, each followed by many updates: the iteration is the step, which only the job knows."""

import torch
from torch import nn

import aiak_tune

policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
for _ in range(100):
    print("step 16")
    seen, state = [], torch.zeros(1, 4)
    with torch.no_grad():
        for _ in range(16):
            state = (state + policy(state) + torch.randn(1, 4)).clamp(-2, 2)
            seen.append(state)
    for _ in range(10):
        loss = (policy(torch.cat(seen)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    aiak_tune.step_done(samples=16)
