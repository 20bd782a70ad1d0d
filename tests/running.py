"""Starts of small jobs for tests, and a look at what they leave behind."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from aiak_tune.agent.spec import RunSpec, SlicePlan
from aiak_tune.optimizations.base import Settings
from aiak_tune.selector.launch import Limits, Outcome, launch
from aiak_tune.selector.progress import Progress

JOBS = Path(__file__).parent / "jobs"
QUICK = SlicePlan(parity=4, warmup=4, steps=6, profiled=0, min_window_s=0.0)


def start(
    command: Sequence[str],
    run_dir: Path,
    *,
    plan: SlicePlan = QUICK,
    settings: Settings | None = None,
    limits: Limits | None = None,
    watch: Callable[[Progress], str | None] = lambda progress: None,
) -> Outcome:
    """Run one slice in a folder of its own; nothing of it may be left."""
    run_dir.mkdir(exist_ok=True)
    spec = RunSpec(run_dir=str(run_dir), settings=settings or {}, slice=plan)
    outcome = launch(command, spec, limits=limits, watch=watch)
    assert processes_with(str(run_dir)) == []
    return outcome


def processes_with(text: str) -> list[int]:
    """The processes that have the text in their environment: a run's folder marks its own."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in environment and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def wait_until(
    true: Callable[[], object], what: str, *, deadline_s: float = 60.0, every_s: float = 0.02
) -> None:
    """Wait for something that has to happen, and say what has not."""
    deadline = time.monotonic() + deadline_s
    while not true():
        assert time.monotonic() < deadline, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(every_s)
