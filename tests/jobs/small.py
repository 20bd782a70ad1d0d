"""A training script as people write them, small: a linear model over a Dataset, on the CPU.

The options make it end in the ways that real jobs do.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(8)
        return x, x.sum(dim=0, keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--profiled", action="store_true", help="by the job's own profiler")
    parser.add_argument("--no-fused", action="store_true", help="fail where the update is fused")
    options = parser.parse_args()
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    own = torch.profiler.profile() if options.profiled else None
    if own is not None:
        own.start()
    step = 0
    while step < options.steps:
        for x, y in DataLoader(Rows(), batch_size=8, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if options.no_fused and step == 5 and optimizer.param_groups[0]["fused"]:
                raise SystemExit("this model cannot stand a fused update")
            if step == options.steps:
                break
    if own is not None:
        own.stop()
    print(f"trained {step} steps")


if __name__ == "__main__":
    main()
