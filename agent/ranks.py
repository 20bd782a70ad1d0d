"""Which rank this process is, and how ranks that have finished wait for each other."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

HOLD_S = 10.0
WAIT_S = 30.0


def rank() -> int:
    """The global rank of this process, 0 alone."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many ranks the job has."""
    return int(os.environ.get("WORLD_SIZE", "1"))


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
