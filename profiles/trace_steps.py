"""Where each step of a trace begins and ends, by the best marks it has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aiak_tune.profiles.intervals import Intervals
from aiak_tune.profiles.trace import Bools, Trace, TraceWarning
from aiak_tune.profiles.trace_kind import CALL_KINDS, Kind

# Updates that one step may hold: a GAN's critic is often trained 5 times for one generator.
MOST_UPDATES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpan:
    """One step's wall time, ns from the trace's origin; `number` as the job counts."""

    number: int
    start: int
    end: int


def main_thread(trace: Trace) -> int:
    """Return the training thread: the one with the step marks, or the next best evidence."""
    for kinds in ((Kind.STEP,), (Kind.OPTIMIZER,), (Kind.FETCH,), CALL_KINDS):
        mask = trace.of_kind(*kinds)
        if mask.any():
            return int(np.bincount(trace.thread[mask]).argmax())
    return -1


def find_steps(trace: Trace, warnings: list[TraceWarning]) -> tuple[StepSpan, ...]:
    """Return the steps in order; what replaced missing step marks is said in `warnings`."""
    on_main = trace.thread == main_thread(trace)
    marked = _by_marks(trace, on_main)
    updates = trace.intervals(trace.of_kind(Kind.OPTIMIZER) & on_main)
    # One mark over a whole loop: step() was called once, after it (HolisticTraceAnalysis#238).
    if len(marked) > 1 or (marked and len(updates) <= MOST_UPDATES):
        return marked
    for found, what in (
        (_by_optimizer(trace, on_main), "taken from one optimizer update to the next"),
        (_by_fetches(trace, on_main), "taken from one batch to the next"),
        (_whole(trace), "the whole trace taken as one"),
    ):
        if found:
            text = f"the trace has no mark for each step: {len(found)} found, {what}"
            warnings.append(TraceWarning(code="no_step_marks", text=text))
            return found
    return ()


def _by_marks(trace: Trace, on_main: Bools) -> tuple[StepSpan, ...]:
    """A step lasts until the next mark begins: the profiler's own work between is no gap."""
    marks = np.flatnonzero(trace.of_kind(Kind.STEP) & on_main)
    seen: dict[int, tuple[int, int]] = {}
    for mark in marks:
        number = int(trace.names[trace.name[mark]].partition("#")[2])
        start, end = int(trace.start[mark]), int(trace.end[mark])
        # One mark cut in pieces is one step.
        known = seen.get(number, (start, end))
        seen[number] = (min(known[0], start), max(known[1], end))
    steps = []
    for number, (start, end) in sorted(seen.items(), key=lambda item: item[1]):
        following = seen.get(number + 1)
        until = following[0] if following and following[0] > start else end
        if until > start:
            steps.append(StepSpan(number=number, start=start, end=until))
    return _without_overlap(steps)


def _without_overlap(steps: list[StepSpan]) -> tuple[StepSpan, ...]:
    """Drop a step that begins inside the one before: two schedules marked one trace."""
    kept: list[StepSpan] = []
    for step in steps:
        if not kept or step.start >= kept[-1].end:
            kept.append(step)
    return tuple(kept)


def _by_optimizer(trace: Trace, on_main: Bools) -> tuple[StepSpan, ...]:
    """A step ends with its update; with several optimizers, with the last of their period."""
    marks = np.flatnonzero(trace.of_kind(Kind.OPTIMIZER) & on_main)
    outer = trace.intervals(trace.of_kind(Kind.OPTIMIZER) & on_main)
    names = trace.name[marks]
    period = len(np.unique(names))
    if period > 1 and len(names) == len(outer) and (names[:-period] == names[period:]).all():
        return _between(outer.ends[period - 1 :: period].tolist())
    return _between(outer.ends.tolist())


def _by_fetches(trace: Trace, on_main: Bools) -> tuple[StepSpan, ...]:
    fetches = trace.intervals(trace.of_kind(Kind.FETCH) & on_main)
    return _between([*fetches.starts.tolist(), int(trace.end.max())]) if len(fetches) > 1 else ()


def _between(bounds: list[int]) -> tuple[StepSpan, ...]:
    """The spans between bounds; what lies before the first one began before the trace."""
    pairs = zip(bounds, bounds[1:], strict=False)
    return tuple(
        StepSpan(number=n, start=start, end=end)
        for n, (start, end) in enumerate(pairs)
        if end > start
    )


def _whole(trace: Trace) -> tuple[StepSpan, ...]:
    window = Intervals.span(int(trace.start.min()), int(trace.end.max()))
    return _between([*window.starts.tolist(), *window.ends.tolist()])
