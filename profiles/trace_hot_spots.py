"""The kernels or operators that take most of a trace's steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aiak_tune.profiles.intervals import Int64s
from aiak_tune.profiles.trace import Bools, Trace
from aiak_tune.profiles.trace_kind import DEVICE_KINDS, Kind
from aiak_tune.profiles.trace_steps import StepSpan, main_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class HotSpot:
    """One name's time and calls, over all steps taken together."""

    name: str
    total_ns: int
    count: int


def hot_spots(trace: Trace, steps: Sequence[StepSpan], *, most: int = 10) -> tuple[HotSpot, ...]:
    """Return the device work, or on the CPU the operators, that began in a step, longest first."""
    chosen = trace.of_kind(*DEVICE_KINDS)
    own = trace.end - trace.start
    if not chosen.any():
        chosen = _operators(trace)
        own = _own_ns(trace, chosen)
    chosen = chosen & _begins_in(trace.start, steps)
    total = np.bincount(trace.name[chosen], own[chosen], len(trace.names))
    count = np.bincount(trace.name[chosen], minlength=len(trace.names))
    ranked = sorted(np.flatnonzero(count), key=lambda i: (-total[i], trace.names[i]))
    return tuple(
        HotSpot(name=trace.names[i], total_ns=int(total[i]), count=int(count[i]))
        for i in ranked[:most]
    )


def _operators(trace: Trace) -> Bools:
    """Operators of the training thread outside the loader."""
    fetch = trace.intervals(trace.of_kind(Kind.FETCH))
    slot = np.searchsorted(fetch.starts, trace.start, side="right") - 1
    ends = np.append(fetch.ends, 0)  # slot -1, before every fetch, reads the 0
    inside: Bools = trace.start < ends[slot]
    on_main = trace.thread == main_thread(trace)
    operators: Bools = trace.of_kind(Kind.OPERATOR) & on_main & ~inside
    return operators


def _own_ns(trace: Trace, chosen: Bools) -> Int64s:
    """Each operator's time without the operators inside it."""
    own = trace.end - trace.start
    open_calls: list[int] = []
    for index in np.flatnonzero(chosen).tolist():
        while open_calls and trace.end[open_calls[-1]] <= trace.start[index]:
            open_calls.pop()
        if open_calls:
            parent = open_calls[-1]
            # A child may outlast its parent by rounding: only the shared part is the child's.
            shared = min(trace.end[index], trace.end[parent]) - trace.start[index]
            own[parent] -= shared
        open_calls.append(index)
    return own


def _begins_in(start: Int64s, steps: Sequence[StepSpan]) -> Bools:
    ordered = sorted(steps, key=lambda s: s.start)
    starts = np.array([s.start for s in ordered], np.int64)
    ends = np.array([s.end for s in ordered], np.int64)
    slot = np.searchsorted(starts, start, side="right") - 1
    inside: Bools = (slot >= 0) & (start < ends[np.maximum(slot, 0)])
    return inside
