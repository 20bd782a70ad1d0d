"""Rollouts, each followed by four updates on what they gathered; nothing marks a step."""

import torch
from torch import nn

policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
for _ in range(100):
    seen, state = [], torch.zeros(1, 4)
    with torch.no_grad():
        for _ in range(16):
            state = (state + policy(state) + torch.randn(1, 4)).clamp(-2, 2)
            seen.append(state)
    for _ in range(4):
        print("step 16")
        loss = (policy(torch.cat(seen)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
