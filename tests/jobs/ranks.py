"""Data-parallel training as people write it: torchrun, gloo, DDP, a DistributedSampler.

The options make one rank slow, make it fail, and leave the exchange of gradients out.
"""

import argparse
import contextlib
import os
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, width: int) -> None:
        self.width = width

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.full((self.width,), index / 4096)
        return x, x[:1]


class Net(nn.Module):
    """Two heads; where `odd` is given, the second is used on odd steps only."""

    def __init__(self, width: int, *, odd: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.head, self.other = nn.Linear(width, 1), nn.Linear(width, 1)
        self.odd, self.calls = odd, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.odd and self.training
        h = self.body(x)
        if self.odd and self.calls % 2:
            return torch.add(self.head(h), self.other(h))
        out: torch.Tensor = self.head(h)
        return out


def sharded(model: nn.Module) -> Any:
    """FSDP of torch 2.6 and later: each rank holds a part of every parameter."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


def evaluate(model: nn.Module, x: torch.Tensor) -> None:
    model.eval()
    with torch.no_grad():
        model(x)
    model.train()


def train(options: argparse.Namespace, store: Any = None, rank: int = -1) -> None:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=-1 if store is None else 2)
    rank = dist.get_rank()
    uneven = options.uneven and rank == 0
    dataset = Rows(options.width)
    sampler: DistributedSampler[tuple[torch.Tensor, torch.Tensor]] = DistributedSampler(dataset)
    loader = DataLoader(
        dataset, batch_size=32, sampler=sampler, num_workers=options.workers and not uneven
    )
    unused = options.odd_head and not options.unused_off
    plain = Net(options.width, odd=options.odd_head)
    if not options.odd_head:
        del plain.other
    if options.shard:
        model = sharded(plain)
    else:
        model = DistributedDataParallel(plain, find_unused_parameters=unused)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    step = 0
    if uneven:
        torch.profiler.profile()  # made, and used later on perhaps: ours keeps away from it
    for epoch in range(10_000):
        sampler.set_epoch(epoch)
        for x, y in loader:
            if rank == options.slow_rank:
                time.sleep(options.slow_s)
            with model.no_sync() if options.no_sync else contextlib.nullcontext():
                loss = nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            step += 1
            print(f"rank {rank} ended step {step}.", flush=True)
            if uneven and step % 5 == 0:
                evaluate(model.module, x)
            if rank == options.fail_rank and step == options.fail_step:
                raise ValueError(f"rank {rank} cannot go on")
            if step == options.steps:
                print(f"rank {rank} trained {step} steps", flush=True)
                dist.destroy_process_group()
                return


def spawned(rank: int, options: argparse.Namespace, port: int) -> None:
    """One rank of torch.multiprocessing.spawn."""
    if options.told_by == "argument":
        train(
            options,
            store=dist.TCPStore(  # type: ignore[attr-defined]
                "127.0.0.1", port, 2, rank == 0
            ),
            rank=rank,
        )
        return
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    train(options)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-s", type=float, default=0.02)
    parser.add_argument("--fail-rank", type=int, default=-1)
    parser.add_argument("--fail-step", type=int, default=5)
    parser.add_argument("--uneven", action="store_true", help="rank 0 does what others do not")
    parser.add_argument("--shard", action="store_true", help="FSDP in place of DDP")
    parser.add_argument("--no-sync", action="store_true", help="gradients are not exchanged")
    parser.add_argument("--odd-head", action="store_true", help="parameters used on odd steps")
    parser.add_argument("--unused-off", action="store_true", help="and DDP is not told of it")
    parser.add_argument("--spawn", type=int, metavar="PORT", help="start both ranks from here")
    parser.add_argument("--told-by", choices=("variables", "argument"), default="variables")
    options = parser.parse_args()
    if options.spawn:
        mp.spawn(spawned, (options, options.spawn), nprocs=2)  # type: ignore[attr-defined, no-untyped-call]
    else:
        train(options)


if __name__ == "__main__":
    main()
