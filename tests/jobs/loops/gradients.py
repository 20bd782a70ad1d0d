"""Takes its gradients by torch.autograd.grad and hands them to an optimizer."""

import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(200):
    print("step 6")
    x = torch.randn(6, 4)
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    for p, g in zip(
        model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
    ):
        p.grad = g
    optimizer.step()
