"""Which rank this process is, and how ranks that have finished wait for each other."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

HOLD_S = 10.0
WAIT_S = 30.0


def process_group() -> Any:
    """Return torch.distributed where the job has initialised it, else None."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def rank() -> int:
    """The global rank of this process, 0 alone.

    The process group knows best: a rank that torch.multiprocessing.spawn started may have been
    told by an argument alone, or sets its variables when we are here already.
    """
    dist = process_group()
    return int(os.environ.get("RANK", "0")) if dist is None else int(dist.get_rank())


def world_size() -> int:
    """How many ranks the job has.

    Without a process group as many as a launcher started here: WORLD_SIZE may be a pod's, whose
    job trains in one process.
    """
    dist = process_group()
    told = os.environ.get("LOCAL_WORLD_SIZE") or "1"
    return int(told) if dist is None else int(dist.get_world_size())


def ranks_here() -> int:
    """How many of them write into this run's folder, as far as nobody has told."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or world_size())


def wait_for_results(run_dir: Path, ranks: int) -> None:
    """Give the other ranks a bounded time to write theirs: an early exit can end them."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if len(list(run_dir.glob("result-*.json"))) >= ranks:
            return
        time.sleep(0.01)


def hold() -> None:
    """Stand still until the supervisor ends everything.

    A script around the training would take an exit for the end of it, and go on: to evaluate, to
    upload, to delete.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(HOLD_S)
