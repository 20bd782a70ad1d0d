"""The profiled steps: torch's profiler around some steps, each under its mark, into a trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiak_tune.agent import facts
from aiak_tune.agent.guest import guest
from aiak_tune.agent.hooks import patch

MOST_MIXED = 32  # steps with an evaluation in them, before profiling is given up
OWN_PROFILER = "the job runs torch.profiler itself: no profiled steps, so no breakdown"


class Profiling:
    """Start between two steps, `step` at each step's end, `stop`; a trace file is left."""

    def __init__(self, torch: Any, run_dir: Path) -> None:
        self._torch = torch
        self._run_dir = run_dir
        self._profiler: Any = None
        self._mark: Any = None
        self._begun = self._passed = 0
        self._job_profiles = False
        self.steps: list[int] = []  # marks without an evaluation in them
        self.path: str | None = None
        self.warnings: list[list[str]] = []

    def start(self) -> bool:
        """Start the profiler; False, with the reason kept, when the job profiles itself."""
        if self._torch.autograd._profiler_enabled() or self._job_profiles:
            self.warnings.append(["own_profiler", OWN_PROFILER])
            return False
        wanted = [self._torch.profiler.ProfilerActivity.CPU]
        if self._torch.cuda.is_available() and self._torch.cuda.is_initialized():
            wanted.append(self._torch.profiler.ProfilerActivity.CUDA)
        self._profiler = self._torch.profiler.profiler._KinetoProfile(activities=wanted)
        self._profiler.prepare_trace()
        self._profiler.start_trace()
        return True

    def job_profiles(self) -> None:
        """The job makes a profiler: nested in it, or around it, ours would leave it empty."""
        self._job_profiles = True
        if self._profiler is not None:
            self.warnings.append(["own_profiler", OWN_PROFILER])
            self._end()
            self.steps.clear()

    @property
    def running(self) -> bool:
        """Whether steps are being profiled."""
        return self._profiler is not None

    def step(self, *, mixed: bool) -> None:
        """A step ended: close its mark, open the next one's.

        The first step has no mark: the profiler's own start falls into it, and the device's queue
        is again as full as in any other step when the first mark begins. Nothing is synchronised
        in between, so what the device does under the next fetch is seen.
        """
        self._passed += 1
        if not self.running:
            return
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            if not mixed:
                self.steps.append(self._begun - 1)
        self._mark = self._torch.profiler.record_function(f"ProfilerStep#{self._begun}")
        self._mark.__enter__()
        self._begun += 1

    def over(self, wanted: int, *, exactly: int | None) -> bool:
        """Whether these were all: so many good ones; where it is given, `exactly` so many."""
        if exactly is not None:
            return self._passed >= exactly
        many = len(self.steps) >= wanted or self._begun >= wanted + MOST_MIXED
        return many or not self.running

    def stop(self, rank: int) -> None:
        """Stop the profiler and write the trace, named after the rank."""
        if self._profiler is None:
            return
        profiler = self._end()
        if not self.steps:
            return
        place = self._run_dir / f"trace-{rank}.json"
        try:
            profiler.export_chrome_trace(str(place))
        except (OSError, RuntimeError) as error:
            self.warnings.append(["trace_unwritten", f"no breakdown: {error}"])
            return
        if not place.is_file():  # kineto does not say that it could not write
            self.warnings.append(["trace_unwritten", "no breakdown: no trace could be written"])
            return
        self.path = place.name

    def _end(self) -> Any:
        profiler, self._profiler = self._profiler, None
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)
        facts.synchronize(self._torch)
        profiler.stop_trace()
        return profiler


def watch_profilers(torch: Any, told: Callable[[], None]) -> None:
    """Tell when the job makes a profiler of its own, or starts one of the older kind."""
    noticed = guest(told)

    def watch(owner: Any, name: str) -> None:
        plain = owner.__dict__[name]

        @functools.wraps(plain)
        def before(self: Any, *args: Any, **kwargs: Any) -> Any:
            noticed()
            return plain(self, *args, **kwargs)

        patch(owner, name, before)

    watch(torch.profiler.profile, "__init__")
    watch(torch.autograd.profiler.profile, "__enter__")
