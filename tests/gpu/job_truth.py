"""A CUDA job that times its own phases: host-clock truth for the slice's breakdown.

Each phase ends with a synchronisation where it must be told from the next; the truth of the
counted steps is printed as JSON lines by the job itself while it runs.
"""

import json
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Busy(Dataset[torch.Tensor]):
    """Samples that cost real work on the CPU."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        value = torch.full((256, 256), float(index % 7))
        for _ in range(int(os.environ.get("WORK", "3"))):
            value = (value @ value).tanh()
        return value[0]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batches = iter(DataLoader(Busy(), batch_size=16))
    truth = open(os.environ["TRUTH"], "w")
    last = time.perf_counter()
    for _ in range(100_000):
        begin = time.perf_counter()
        batch = next(batches)
        fetched = time.perf_counter()
        optimizer.zero_grad()
        loss = model(batch.cuda()).square().mean()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        now = time.perf_counter()
        truth.write(json.dumps([1e3 * (now - last), 1e3 * (fetched - begin)]) + "\n")
        truth.flush()
        last = now
    sys.exit("the slice did not end")


if __name__ == "__main__":
    main()
