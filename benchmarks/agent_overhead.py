"""The agent's cost a step outside profiled steps, in one process.

Prints rows of docs/results (DESIGN.md section 10) as JSON. Two parts, both in CPU time of the
training thread, since the hooks only compute and other load is not in it: the hooks' own work,
from steps of which every second one runs with the guest detached (neighbours share whatever the
machine does), and what detached wrappers still cost, from blocks with and without them of a loop
that does next to nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median, stdev

import torch
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader

from aiak_tune.agent import hooks
from aiak_tune.agent.arm import watch_slice
from aiak_tune.agent.guest import GUEST
from aiak_tune.agent.slicing import Slice
from aiak_tune.agent.spec import RunSpec, SlicePlan
from aiak_tune.selector.quantiles import t_quantile

SETTLE = 20
PLAN = SlicePlan(
    parity=0, warmup=5, steps=10**9, profiled=0, max_window_s=math.inf, probe=False, seed=None
)


class Job:
    """A loop whose step takes about `target_ms`."""

    def __init__(self, target_ms: float) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        ready = [(torch.randn(8, 64), torch.randint(0, 8, (8,)))] * 10_000
        self.batches: DataLoader[tuple[Tensor, Tensor]] = DataLoader(ready, batch_size=None)  # type: ignore[arg-type]
        self.rounds = 1
        while target_ms and (took := median(self.steps_us(30))) < target_ms * 950:
            self.rounds += max(1, int(self.rounds * (target_ms * 1e3 / took - 1) / 2))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        work = x
        for _ in range(self.rounds):
            work = torch.tanh(work)
        return nn.functional.cross_entropy(self.model(x + 0 * work), y)

    def steps_us(self, count: int, toggle: Slice | None = None) -> list[float]:
        """CPU time of each step, fetch to fetch; `toggle`: that guest is away in every second."""
        took = []
        last = time.thread_time_ns()
        for number, (x, y) in enumerate(self.batches):
            loss = self.loss(x, y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            now = time.thread_time_ns()
            took.append((now - last) / 1e3)
            last = now
            if toggle and number >= SETTLE:
                GUEST.detached = not GUEST.detached
                toggle.express.on = not GUEST.detached
            if number == SETTLE + count:
                break
        return took[SETTLE + 1 :]


@contextmanager
def agent() -> Iterator[Slice]:
    """The hooks of a slice that stays in its window."""
    with tempfile.TemporaryDirectory() as folder:
        GUEST.run_dir, GUEST.detached, GUEST.leave = Path(folder), False, []
        hooks.Thread.ident = threading.get_ident()
        run = watch_slice(torch, RunSpec(run_dir=folder, slice=PLAN), PLAN)
        try:
            yield run
            assert run.clock.updates and not list(Path(folder).glob("fault-*"))
        finally:
            GUEST.detach()
            torch_optimizer._global_optimizer_pre_hooks.clear()
            torch_optimizer._global_optimizer_post_hooks.clear()


def hooks_us(job: Job, repeats: int, count: int) -> tuple[list[float], float]:
    """Added microseconds of the hooks' work, each repeat, and the step without it."""
    added, plain = [], []
    for _ in range(repeats):
        with agent() as run:
            took = job.steps_us(2 * count, toggle=run)
            assert run.express.on or GUEST.detached
        away, there = took[0::2], took[1::2]
        # Against both neighbours: the machine's drift is as good as gone in the difference.
        added.append(
            median(t - (a + b) / 2 for a, t, b in zip(away, there, away[1:], strict=False))
        )
        plain.append(median(away))
    return added, median(plain)


def wrappers_us(job: Job, repeats: int, count: int) -> list[float]:
    """Added microseconds of wrappers whose guest is away, each repeat."""
    added = []
    for _ in range(repeats):
        before = median(job.steps_us(count))
        with agent() as run:
            job.steps_us(2 * SETTLE)
            GUEST.detached, run.express.on = True, False
            between = median(job.steps_us(count))
        added.append(between - (before + median(job.steps_us(count))) / 2)
    return added


def row(name: str, unit: str, samples: list[float], note: str) -> dict[str, object]:
    """One row with its 95% interval."""
    reach = t_quantile(0.975, len(samples) - 1) * stdev(samples) / math.sqrt(len(samples))
    middle = mean(samples)
    return {
        "name": name, "value": middle, "unit": unit, "low": middle - reach,
        "high": middle + reach, "samples": samples, "against": "no agent", "note": note,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--steps", type=int, default=300, help="steps of a block")
    parser.add_argument("--step-ms", type=float, default=2.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    own, step_us = hooks_us(Job(args.step_ms), args.repeats, args.steps)
    rest = wrappers_us(Job(0.0), args.repeats, args.steps)
    cost = [a + median(rest) for a in own]
    note = f"a plain step takes {step_us / 1e3:.2f} ms; torch {torch.__version__}, one thread"
    rows = [
        row("agent_overhead_us", "us", cost, note),
        row("agent_overhead_share", "share", [a / step_us for a in cost], note),
        row("agent_wrappers_us", "us", rest, "part of the above: wrappers, the guest away"),
    ]
    print(json.dumps({"area": "tune", "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
