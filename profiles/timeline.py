"""A rank's trace as disjoint intervals: what the device and the host were doing, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from aiak_tune.profiles.intervals import EMPTY, Intervals
from aiak_tune.profiles.trace import NO_ID, Bools, Trace
from aiak_tune.profiles.trace_kind import (
    AUTOGRAD_NODE,
    CALL_KINDS,
    DEVICE_KINDS,
    Kind,
    is_convolution,
    is_matmul,
    is_sync_call,
)
from aiak_tune.profiles.trace_steps import main_thread

# DESIGN.md section 4: shorter absences are Python between two operators.
HOST_NS = 1_000_000
_COPYING = frozenset({"aten::to", "aten::_to_copy", "aten::copy_"})
_COMPUTE = (Kind.KERNEL, Kind.MEMCPY_DTOD, Kind.MEMSET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The time of each activity; they overlap, attribution gives every instant to one.

    Attributes:
        compute: kernels, device-to-device copies, memsets; on the CPU: operators.
        collectives: collective kernels; on the CPU: from a collective's call to its completion.
        waiting: the part of collectives that a training thread waits for; CPU only.
        copies: host-to-device copies on the device.
        staging: the host inside a call that copies to the device.
        fetch: the training loop waits for its next batch.
        away: the training threads are in no call for over 1 ms on end, fetches included.
        drained: device idle after a synchronising call; None when no calls were recorded.
        matmul: the part of compute in matrix products, convolutions, attention.
        convolution: the part of that in convolutions.
    """

    compute: Intervals
    collectives: Intervals
    waiting: Intervals
    copies: Intervals
    staging: Intervals
    fetch: Intervals
    away: Intervals
    drained: Intervals | None
    matmul: Intervals
    convolution: Intervals

    def clip(self, start: int, end: int) -> Timeline:
        """Return the part of it inside `[start, end)`."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{n: p.clip(start, end) for n, p in parts.items() if p is not None})


def timeline_of(trace: Trace) -> Timeline:
    """Reduce a trace to a timeline, by device rules when it has device events."""
    on_main = trace.thread == main_thread(trace)
    fetch = trace.intervals(trace.of_kind(Kind.FETCH) & on_main)
    training = on_main | _autograd_threads(trace)
    calls = trace.intervals(trace.of_kind(*CALL_KINDS) & training)
    window = int(trace.start.min()), int(trace.end.max())
    away = calls.outside(*window).longer_than(HOST_NS)
    if trace.of_kind(*DEVICE_KINDS).any():
        return _device_timeline(trace, fetch, away)
    return _cpu_timeline(trace, fetch, away, training)


def _cpu_timeline(trace: Trace, fetch: Intervals, away: Intervals, training: Bools) -> Timeline:
    operators = trace.of_kind(Kind.OPERATOR) & training
    compute = trace.intervals(operators)
    # Gloo's records lie on threads of its own, beside the backward pass. A call of c10d on a
    # training thread is part of the collective, also inside a compiled region.
    records = trace.intervals(trace.of_kind(Kind.HOST_COLLECTIVE))
    calls = trace.intervals(trace.of_kind(Kind.COLLECTIVE_CALL) & training)
    return Timeline(
        compute=compute,
        collectives=records.union(calls),
        waiting=records.minus(compute).union(calls),
        copies=EMPTY,
        staging=EMPTY,
        fetch=fetch,
        away=away,
        drained=None,
        matmul=trace.intervals(operators & _named(trace, is_matmul, Kind.OPERATOR)),
        convolution=trace.intervals(operators & _named(trace, is_convolution, Kind.OPERATOR)),
    )


def _device_timeline(trace: Trace, fetch: Intervals, away: Intervals) -> Timeline:
    compute = trace.intervals(trace.of_kind(*_COMPUTE))
    collectives = trace.intervals(trace.of_kind(Kind.COLLECTIVE))
    copies = trace.intervals(trace.of_kind(Kind.MEMCPY_HTOD))
    return Timeline(
        compute=compute,
        collectives=collectives,
        waiting=EMPTY,
        copies=copies,
        staging=_staging(trace),
        fetch=fetch,
        away=away,
        drained=_drained(trace, compute.union(collectives, copies)),
        matmul=trace.intervals(_kernels(trace, is_matmul)),
        convolution=trace.intervals(_kernels(trace, is_convolution)),
    )


def _autograd_threads(trace: Trace) -> Bools:
    nodes = trace.named(name.startswith(AUTOGRAD_NODE) for name in trace.names)
    nodes &= trace.of_kind(Kind.OPERATOR)
    return np.isin(trace.thread, np.unique(trace.thread[nodes]))


def _staging(trace: Trace) -> Intervals:
    """Host time in calls that copy to the device, with the copying operator around them.

    A call that copies pageable memory returns when it is staged: on h2d_bound the operator lasts
    29.7 ms, the call 29.5 ms, the engine's copy 29.3 ms.
    """
    issuers = _issuers(trace, Kind.MEMCPY_HTOD)
    around = trace.of_kind(Kind.OPERATOR) & trace.named(n in _COPYING for n in trace.names)
    around &= np.isin(trace.thread, np.unique(trace.thread[issuers]))
    calls = trace.intervals(issuers)
    return trace.intervals(around).touching(calls).union(calls)


def _issuers(trace: Trace, copy: Kind) -> Bools:
    """Mask the runtime calls that issued copies of this kind; without calls, the operators."""
    copies = trace.of_kind(copy)
    by_call = trace.of_kind(Kind.RUNTIME) & _linked(trace.correlation, copies)
    if trace.of_kind(Kind.RUNTIME).any():
        return by_call
    return trace.of_kind(Kind.OPERATOR) & _linked(trace.external, copies)


def _linked(ids: np.ndarray[tuple[int], np.dtype[np.int64]], mask: Bools) -> Bools:
    """Mask the events that share an id with the masked ones."""
    wanted = np.unique(ids[mask])
    return np.isin(ids, wanted[wanted != NO_ID])


def _drained(trace: Trace, work: Intervals) -> Intervals | None:
    """Idle time that began while the host waited for the device to run dry.

    A call that finds the device idle already drains nothing: there the host is the slow one.
    """
    runtime = trace.of_kind(Kind.RUNTIME)
    if not runtime.any():
        return None
    waits = runtime & trace.named(map(is_sync_call, trace.names))
    waits |= _issuers(trace, Kind.MEMCPY_DTOH)
    waiting = trace.intervals(waits)
    idle = work.outside(int(trace.start.min()), int(trace.end.max()))
    if not len(waiting):
        return EMPTY
    before = np.searchsorted(waiting.starts, idle.starts, side="left") - 1
    drained = (before >= 0) & (waiting.ends[np.maximum(before, 0)] >= idle.starts)
    return Intervals(idle.starts[drained], idle.ends[drained])


def _kernels(trace: Trace, wanted: Callable[[Kind, str], bool]) -> Bools:
    """Kernels named as such, or issued by such an operator (layout changes around it too)."""
    operators = _named(trace, wanted, Kind.OPERATOR) & trace.of_kind(Kind.OPERATOR)
    chosen = _named(trace, wanted, Kind.KERNEL) | _linked(trace.external, operators)
    return trace.of_kind(Kind.KERNEL) & chosen


def _named(trace: Trace, wanted: Callable[[Kind, str], bool], kind: Kind) -> Bools:
    return trace.named(wanted(kind, name) for name in trace.names)
