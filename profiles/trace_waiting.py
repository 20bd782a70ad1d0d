"""Several ranks: how long each waits for a late one, told from the transfer itself.

A collective ends in all ranks at about the same time, and begins in each when that rank comes to
it. Who comes last waits for nobody: its duration is the transfer, and what the same collective
takes longer elsewhere is waiting. So no common clock is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aiak_tune.profiles.intervals import EMPTY, Intervals
from aiak_tune.profiles.trace import Trace
from aiak_tune.profiles.trace_kind import DEVICE_KINDS, Kind
from aiak_tune.profiles.trace_steps import find_steps

# What tells a collective of one rank from the same one of another: its step, its name, and how
# many of that name came before it in the step.
Key = tuple[int, str, int]
Span = tuple[int, int]


def waiting_of(traces: Sequence[Trace]) -> list[Intervals] | None:
    """Return, for each rank's trace, when its collectives waited for a late rank.

    Returns:
        One for each trace, over the steps that all traces mark alike; None when a step has not
        the same collectives everywhere, or there is one rank alone.
    """
    if len(traces) < 2:
        return None
    found = [_collectives(trace) for trace in traces]
    numbers = set.intersection(*(steps for steps, _ in found))
    told = [{k: s for k, s in own.items() if k[0] in numbers} for _, own in found]
    if any(own.keys() != told[0].keys() for own in told):
        return None
    shortest = {key: min(own[key][1] - own[key][0] for own in told) for key in told[0]}
    return [
        Intervals.of(
            [start for start, _ in own.values()],
            [end - shortest[key] for key, (_, end) in own.items()],
        )
        if own
        else EMPTY
        for own in told
    ]


def _collectives(trace: Trace) -> tuple[set[int], dict[Key, Span]]:
    """Return the numbers of the steps, and the collectives in them."""
    on_device = trace.of_kind(*DEVICE_KINDS).any()
    mask = trace.of_kind(Kind.COLLECTIVE if on_device else Kind.HOST_COLLECTIVE)
    found: dict[Key, Span] = {}
    steps = find_steps(trace, [])
    for step in steps:
        inside = np.flatnonzero(mask & (trace.start >= step.start) & (trace.start < step.end))
        counts: dict[str, int] = {}
        for event in inside:  # sorted by their start
            name = trace.names[trace.name[event]]
            counts[name] = counts.get(name, 0) + 1
            span = int(trace.start[event]), int(trace.end[event])
            found[step.number, name, counts[name]] = span
    return {step.number for step in steps}, found
