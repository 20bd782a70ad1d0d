"""The ranks of one start side by side: the same steps of all, each one's breakdown, the slowest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aiak_tune.agent.records import SliceRecord, WindowRecord
from aiak_tune.errors import ProfileError
from aiak_tune.profiles.attribution import attribute
from aiak_tune.profiles.intervals import Intervals
from aiak_tune.profiles.trace import Trace, read_trace
from aiak_tune.profiles.trace_waiting import waiting_of
from aiak_tune.profiles.workload import Warn
from aiak_tune.selector.breakdown import STEP, RankBreakdown, cautions, combine

NO_BREAKDOWN = ("own_profiler", "trace_unwritten")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank: its record, its breakdown or None, and what a reader must know."""

    record: SliceRecord
    found: RankBreakdown | None
    warnings: tuple[Warn, ...]

    @property
    def step_ms(self) -> float:
        """The mean counted step."""
        return _mean_ms(self.record)

    @property
    def waiting_ms(self) -> float | None:
        """What of it waits for a later rank; None: not known."""
        return None if self.found is None else self.found.detail_ms.comm_waiting


def window_of(record: SliceRecord) -> WindowRecord:
    """Return the counted window of a diagnosed record."""
    if record.window is None or not record.window.steps:
        raise ProfileError(f"rank {record.rank} has no counted step")
    return record.window


def slowest_of(records: Sequence[SliceRecord]) -> SliceRecord:
    """Return the rank with the longest mean step: the job's pace."""
    return max(records, key=_mean_ms)


def slowest_view(views: Sequence[RankView]) -> RankView:
    """Return the rank that holds the others up: the longest step, waiting for others left out.

    Ranks that exchange gradients all take the same time for a step; the one that the others wait
    for shows why. A rank without a breakdown is taken only where none has one.
    """
    shown = [view for view in views if view.found is not None] or views
    return max(shown, key=lambda view: view.step_ms - (view.waiting_ms or 0.0))


def aligned(records: Sequence[SliceRecord]) -> tuple[SliceRecord, ...]:
    """Leave out in all ranks the steps that one of them left out: the others waited meanwhile.

    Only where the ranks counted the same steps.
    """
    windows = [r.window for r in records]
    counted = {None if w is None else len(w.steps) + len(w.left_out) for w in windows}
    left = {at for w in windows if w is not None for at in w.left_out}
    if len(records) < 2 or len(counted) > 1 or not left:
        return tuple(records)
    return tuple(
        replace(r, window=w if w is None else _without(w, left))
        for r, w in zip(records, windows, strict=True)
    )


def _without(window: WindowRecord, left: set[int]) -> WindowRecord:
    counted = len(window.steps) + len(window.left_out)
    places = [at for at in range(counted) if at not in set(window.left_out)]
    rows = dict(zip(places, window.steps, strict=True))
    kept = [row for at, row in rows.items() if at not in left]
    if not kept:
        return window
    gone = sum(row[STEP] or 0 for at, row in rows.items() if at in left)
    return replace(window, steps=kept, wall_ns=window.wall_ns - gone, left_out=sorted(left))


def views_of(records: Sequence[SliceRecord], run_dir: Path) -> tuple[RankView, ...]:
    """Return each rank with its breakdown; what waits for a late rank is known of them all."""
    traces, problems = _traces(records, run_dir)
    late: dict[int, Intervals] = {}
    if len(traces) == len(records):
        late = dict(zip(traces, waiting_of(list(traces.values())) or (), strict=False))
    # An evaluation in one rank is a wait in the others.
    profiled = [set(r.profiled) for r in records if r.rank in traces]
    steps = set.intersection(*profiled) if profiled else set()
    views = []
    for record in records:
        told = [Warn(code=code, text=text) for code, text in record.warnings]
        found = None
        if record.rank in traces:
            trace = traces[record.rank]
            found = _breakdown(record, trace, steps or set(record.profiled), late, told)
        elif record.rank in problems:
            told.append(problems[record.rank])
        elif not any(w.code in NO_BREAKDOWN for w in told):
            told.append(Warn(code="no_profiled_steps", text="no profiled steps, so no breakdown"))
        told += cautions(window_of(record), found)
        views.append(RankView(record=record, found=found, warnings=tuple(told)))
    return tuple(views)


def _traces(
    records: Sequence[SliceRecord], run_dir: Path
) -> tuple[dict[int, Trace], dict[int, Warn]]:
    traces, problems = {}, {}
    for record in records:
        if record.trace is not None and record.profiled:
            try:
                traces[record.rank] = read_trace(run_dir / record.trace)
            except ProfileError as error:
                text = f"no breakdown: {error}"
                problems[record.rank] = Warn(code="trace_unreadable", text=text)
    return traces, problems


def _breakdown(
    record: SliceRecord,
    trace: Trace,
    steps: set[int],
    late: dict[int, Intervals],
    told: list[Warn],
) -> RankBreakdown | None:
    try:
        found = attribute(trace, steps=steps, late=late.get(record.rank))
    except ProfileError as error:
        told.append(Warn(code="trace_unreadable", text=f"no breakdown: {error}"))
        return None
    told += [Warn(code=w.code, text=w.text) for w in found.warnings if w.code != "no_rank"]
    if found.device == "cpu" and record.environment.get("gpu") and _on_gpu(record):
        text = "the profiler gave no GPU events (another profiler, no permission): no breakdown"
        told.append(Warn(code="no_device_events", text=text))
        return None
    return combine(window_of(record), found)


def warnings_of(views: Sequence[RankView], shown: RankView) -> list[Warn]:
    """Return what a reader must know of the shown rank, and of the others what it has not."""
    told = list(shown.warnings)
    for view in views:
        codes = {w.code for w in told}
        told += [
            Warn(code=w.code, text=f"rank {view.record.rank}: {w.text}")
            for w in view.warnings
            if w.code not in codes
        ]
    return told


def _mean_ms(record: SliceRecord) -> float:
    window = window_of(record)
    return window.wall_ns / len(window.steps) / 1e6


def _on_gpu(record: SliceRecord) -> bool:
    return any(d != "cpu" for d in (record.facts.get("model") or {}).get("devices", ()))
