"""Updates its weights by hand, and marks its steps; aiak-tune need not be installed."""

import torch
from torch import nn

try:
    from aiak_tune import step_done
except ImportError:

    def step_done(samples: int | None = None) -> None:
        """Nobody listens."""


model = nn.Linear(4, 1)
for number in range(200):
    size = 4 + number % 3
    print(f"step {size}")
    x = torch.randn(size, 4)
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for p, g in zip(model.parameters(), gradients, strict=True):
            p.sub_(0.01 * g)
    step_done(samples=size)
