"""An agent armed by hand in the test's own process, and small jobs for it."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, Dataset

from aiak_tune.agent import hooks
from aiak_tune.agent.arm import watch_slice
from aiak_tune.agent.guest import GUEST
from aiak_tune.agent.records import SliceRecord, read_results
from aiak_tune.agent.slicing import Slice
from aiak_tune.agent.spec import RunSpec, SlicePlan
from aiak_tune.ops import loader_workers
from aiak_tune.optimizations.base import Settings

QUICK = SlicePlan(parity=0, warmup=3, steps=6, profiled=0, min_window_s=0.0, seed=None)


class Ended(BaseException):
    """What stands for `os._exit` here: no `except Exception` of the agent or the job holds it."""


@contextmanager
def guesting(run_dir: Path) -> Iterator[None]:
    """The agent's process-wide state fresh, and everything of torch as it was behind it."""

    plain_exit, here = os._exit, os.getpid()

    def leave(code: int) -> None:
        if os.getpid() != here:
            plain_exit(code)  # worker processes end by it too
        raise Ended(code)

    GUEST.run_dir, GUEST.detached, GUEST.leave = run_dir, False, []
    hooks.Thread.ident = threading.get_ident()
    os._exit = leave  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = plain_exit
        # The job's loaders live on in the frames of the exception that ended it. Before the
        # guest leaves: its hooks stand below these, and would stay.
        loader_workers.WATCHED.clear()
        loader_workers.uninstall()
        GUEST.detach()
        # In a job they stay and return at once.
        torch_optimizer._global_optimizer_pre_hooks.clear()
        torch_optimizer._global_optimizer_post_hooks.clear()


@contextmanager
def armed(
    run_dir: Path, plan: SlicePlan = QUICK, settings: Settings | None = None
) -> Iterator[Slice]:
    """A slice's hooks are in place inside."""
    with guesting(run_dir):
        spec = RunSpec(run_dir=str(run_dir), settings=settings or {}, slice=plan)
        yield watch_slice(torch, spec, plan)


def record_of(
    run_dir: Path,
    job: Callable[[], object],
    plan: SlicePlan = QUICK,
    settings: Settings | None = None,
) -> SliceRecord:
    """Run a job to the end of its slice and return what the agent wrote."""
    with armed(run_dir, plan, settings) as run:
        try:
            job()
        except Ended:
            pass
        else:
            run.ended_early()
    faults = [p.read_text() for p in run_dir.glob("fault-*")]
    assert not faults, faults[0]
    results = read_results(run_dir)
    for place in run_dir.glob("*.json*"):
        place.unlink()
    return results[0]


def rows(record: SliceRecord) -> list[list[int | None]]:
    assert record.window is not None
    return record.window.steps


def column(record: SliceRecord, index: int) -> list[int | None]:
    return [row[index] for row in rows(record)]


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Points with a target; `noise` draws from this many generators, as augmentation does."""

    def __init__(self, n: int = 4000, noise: bool = False) -> None:
        self.n, self.noise = n, noise

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.arange(4, dtype=torch.float32) + index % 7
        if self.noise:
            import numpy

            x = x + torch.rand(4) + random.random() + float(numpy.random.rand())
        return x, x.sum(dim=0, keepdim=True) / 10


def net(dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 1))


def train(
    loader: Iterable[Any] | Callable[[], DataLoader[Any]],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    epochs: int = 100,
    each: Callable[[int], None] = lambda step: None,
) -> None:
    """The plain loop; `each` runs after every step."""
    step = 0
    for _ in range(epochs):
        for x, y in loader() if callable(loader) else loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            each(step)


def plain_job(batch_size: int = 8, **more: Any) -> None:
    model = net()
    loader = DataLoader(Points(), batch_size=batch_size, **more)
    train(loader, model, torch.optim.SGD(model.parameters(), lr=1e-3))
