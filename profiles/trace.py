"""One rank's trace as columns: the events attribution needs, in integer nanoseconds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from aiak_tune.errors import ProfileError
from aiak_tune.profiles.intervals import Int64s, Intervals
from aiak_tune.profiles.trace_kind import DEVICE_KINDS, Kind, device_of_call, kind_of
from aiak_tune.profiles.trace_read import Arguments, Document, Event, read_document

Bools: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]
_Key = TypeVar("_Key", bound=Hashable)

NO_ID = -1
# Times further apart than this (years, in microseconds) are damage, and would overflow.
_FAR_US = 1e14


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWarning:
    """Something the reader must know before believing a number; `code` is stable."""

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Complete events of one rank, sorted by start; the columns have shape (events,).

    Attributes:
        kind: `Kind` of each.
        name: index into `names`.
        thread: host thread or device stream: equal numbers, equal (pid, tid).
        start: nanoseconds after `origin_ns`.
        end: likewise, never below start.
        correlation: links a runtime call with the device work it issued, or NO_ID.
        external: links device work with the operator that issued it, or NO_ID.
        origin_ns: the file's own time of instant 0.
        base_ns: what the file adds to its times to get the epoch; 0 in old files.
        device: cuda, rocm or xpu; gpu when only its own events show one; else cpu.
    """

    names: tuple[str, ...]
    kind: NDArray[np.uint8]
    name: Int64s
    thread: Int64s
    start: Int64s
    end: Int64s
    correlation: Int64s
    external: Int64s
    origin_ns: int
    base_ns: int
    rank: int
    world_size: int
    device: str
    warnings: tuple[TraceWarning, ...]

    def __len__(self) -> int:
        return len(self.kind)

    def of_kind(self, *kinds: Kind) -> Bools:
        """Return the mask of events of these kinds."""
        return np.isin(self.kind, np.array(kinds, np.uint8))

    def named(self, chosen: Iterable[bool]) -> Bools:
        """Return the mask of events whose name is chosen; one answer for each of `names`."""
        return np.fromiter(chosen, np.bool_, len(self.names))[self.name]

    def intervals(self, mask: Bools) -> Intervals:
        """Return the union of the masked events."""
        return Intervals.of(self.start[mask], self.end[mask])


def read_trace(path: Path | str) -> Trace:
    """Read a PyTorch profiler trace: JSON, plain or packed with gzip or zip.

    Raises:
        ProfileError: the file is missing, no trace, or holds no event we can use.
    """
    document, cut = read_document(Path(path))
    trace = trace_of(document, str(path))
    if not cut:
        return trace
    warning = TraceWarning(code="truncated", text=f"{path} ends early: its last events are missing")
    return replace(trace, warnings=(warning, *trace.warnings))


def trace_of(document: Document, source: str = "the trace") -> Trace:
    """Build the columns; `source` names the file in messages."""
    warnings: list[TraceWarning] = []
    events, kinds = _useful(document.traceEvents)
    start, end, sound, origin_ns = _times(events, warnings)
    if not sound.any():
        raise ProfileError(f"{source} holds no events to attribute: was the profiler on?")
    names, name = _intern([str(e.name) for e in events])
    _, thread = _intern([(str(e.pid), str(e.tid)) for e in events])
    args = [e.args if isinstance(e.args, Arguments) else Arguments() for e in events]
    # Any order in the file gives the same columns.
    order = np.lexsort((thread, name, kinds, -end, start))
    order = order[sound[order]]
    rank, world_size = _place(document.distributedInfo, warnings)
    return Trace(
        names=names,
        kind=kinds[order],
        name=name[order],
        thread=thread[order],
        start=start[order],
        end=end[order],
        correlation=_ids([a.correlation for a in args])[order],
        external=_ids([a.external for a in args])[order],
        origin_ns=origin_ns,
        base_ns=_whole(document.baseTimeNanoseconds, 0),
        rank=rank,
        world_size=world_size,
        device=_device(kinds, name, names),
        warnings=tuple(warnings),
    )


def _useful(events: Sequence[Event]) -> tuple[list[Event], NDArray[np.uint8]]:
    """Keep complete events of a kind we know; flows, metadata and Python frames go."""
    known: dict[tuple[Any, Any], Kind | None] = {}
    kept: list[Event] = []
    kinds: list[Kind] = []
    for event in events:
        if event.ph != "X":
            continue
        key = (str(event.cat), str(event.name))
        if key not in known:
            known[key] = kind_of(*key)
        kind = known[key]
        if kind is not None:
            kept.append(event)
            kinds.append(kind)
    return kept, np.array(kinds, np.uint8)


def _times(
    events: Sequence[Event], warnings: list[TraceWarning]
) -> tuple[Int64s, Int64s, Bools, int]:
    """Return starts and ends in ns from the origin, which are sound, and the origin in ns."""
    at, lasts = _floats([e.ts for e in events]), _floats([e.dur for e in events])
    finite = np.isfinite(at)
    # A time that most events are near to, whatever a broken one says.
    middle = np.quantile(at[finite], 0.5, method="lower") if finite.any() else 0
    origin_us = int(np.floor(middle))
    near = finite & (np.abs(at - origin_us) < _FAR_US)
    if near.any():
        origin_us = int(np.floor(at[near].min()))
    sound = near & ~(lasts >= _FAR_US)
    broken = sound & ~(lasts >= 0)
    for code, count, what in (
        ("negative_durations", int(broken.sum()), "without an end or ending before they start"),
        ("bad_times", int((~sound).sum()), "without a usable time, left out"),
    ):
        if count:
            warnings.append(TraceWarning(code=code, text=f"{count} of {len(events)} events {what}"))
    # Subtract first: microseconds times 1000 would leave the exact range of a double.
    start = np.rint(np.where(sound, at - origin_us, 0) * 1000).astype(np.int64)
    duration = np.rint(np.where(sound & ~broken, lasts, 0) * 1000).astype(np.int64)
    return start, start + duration, sound, origin_us * 1000


def _floats(values: list[Any]) -> Floats:
    """Numbers, or text that holds some; NaN for anything else."""
    try:
        return np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_number(v) for v in values], np.float64)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _ids(values: list[Any]) -> Int64s:
    small = (v if isinstance(v, int) and 0 <= v < 2**63 else NO_ID for v in values)
    return np.fromiter(small, np.int64, len(values))


def _intern(values: list[_Key]) -> tuple[tuple[_Key, ...], Int64s]:
    """Number the distinct values in their own order, so that the file's order is forgotten."""
    distinct = sorted(set(values), key=str)
    number = {value: index for index, value in enumerate(distinct)}
    return tuple(distinct), np.fromiter((number[v] for v in values), np.int64, len(values))


def _place(info: Any, warnings: list[TraceWarning]) -> tuple[int, int]:
    """Return rank and world size from distributedInfo; absent, rank 0 of 1."""
    found = info if isinstance(info, dict) else {}
    rank, world_size = _whole(found.get("rank"), -1), _whole(found.get("world_size"), -1)
    if rank < 0:
        text = "the trace does not say which rank it is: taken as rank 0"
        warnings.append(TraceWarning(code="no_rank", text=text))
    rank = max(rank, 0)
    return rank, max(world_size, rank + 1)


def _device(kinds: NDArray[np.uint8], name: Int64s, names: tuple[str, ...]) -> str:
    calls = np.unique(name[kinds == Kind.RUNTIME])
    vendors = sorted({d for i in calls if (d := device_of_call(names[i])) is not None})
    if vendors:
        return vendors[0]
    on_device = np.isin(kinds, np.array(DEVICE_KINDS, np.uint8)).any()
    return "gpu" if on_device else "cpu"
