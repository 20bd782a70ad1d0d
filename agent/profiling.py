"""The profiled steps: torch's profiler around some steps, each under its mark, into a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiak_tune.agent.guest import GUEST


class Profiling:
    """Start between two steps, `step` at each step's end, `stop`; a trace file is left."""

    def __init__(self, torch: Any, run_dir: Path, rank: int) -> None:
        self._torch = torch
        self._place = run_dir / f"trace-{rank}.json"
        self._profiler: Any = None
        self._mark: Any = None
        self._begun = 0
        self.steps: list[int] = []  # marks without an evaluation in them
        self.path: str | None = None
        self.warnings: list[list[str]] = []

    def start(self) -> bool:
        """Start the profiler; False, with the reason kept, when the job profiles itself."""
        autograd = self._torch.autograd
        if autograd._profiler_enabled() or JOB_PROFILES[0]:
            text = "the job runs torch.profiler itself: no profiled steps, so no breakdown"
            self.warnings.append(["own_profiler", text])
            return False
        wanted = [self._torch.profiler.ProfilerActivity.CPU]
        if self._torch.cuda.is_available() and self._torch.cuda.is_initialized():
            wanted.append(self._torch.profiler.ProfilerActivity.CUDA)
        self._profiler = self._torch.profiler.profiler._KinetoProfile(activities=wanted)
        self._profiler.prepare_trace()
        self._profiler.start_trace()
        return True

    def step(self, *, mixed: bool) -> int:
        """A step ended: close its mark, open the next one's; return how many good ones there are.

        The first step has no mark: the profiler's own start falls into it, and the device's queue
        is again as full as in any other step when the first mark begins. Nothing is synchronised
        in between, so what the device does under the next fetch is seen.
        """
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            if not mixed:
                self.steps.append(self._begun - 1)
        self._mark = self._torch.profiler.record_function(f"ProfilerStep#{self._begun}")
        self._mark.__enter__()
        self._begun += 1
        return len(self.steps)

    def stop(self) -> None:
        """Stop the profiler and write the trace."""
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
        if self._torch.cuda.is_available() and self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()
        profiler.stop_trace()
        if self.steps:
            profiler.export_chrome_trace(str(self._place))
            self.path = self._place.name


JOB_PROFILES = [False]  # set when the job makes a profiler of its own


def watch_profilers(torch: Any) -> None:
    """Notice a profiler of the job's: nesting ours in it would leave the user an empty trace."""
    cls = torch.profiler.profile
    plain = cls.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        JOB_PROFILES[0] = True
        plain(self, *args, **kwargs)

    cls.__init__ = __init__
    GUEST.leave.append(lambda: setattr(cls, "__init__", plain))
