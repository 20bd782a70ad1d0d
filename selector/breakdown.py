"""One rank's breakdown from its two kinds of steps: clean ones and profiled ones.

The profiler slows operators, not waits or kernels. So the step time and the wait for data come
from clean steps, what the device did from profiled ones, unscaled, and the gap is the remainder.
On a CPU the operators themselves are slowed: there the profiled steps give only the proportion of
operators to the Python between them (docs/decisions/0004-cpu-breakdown.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from aiak_tune.agent.records import WindowRecord
from aiak_tune.profiles.attribution import Attribution
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import DetailMs, StepMs, Warn
from aiak_tune.selector.windows import summary

UNEVEN = 0.10
# The profiler slows operators by less: where they would have been faster still in the clean steps,
# the rest of the profiled steps was longer than there, by chance.
MOST_SLOWED = 4.0
INFLATED = 1.05
STEP, FETCH, BATCHES, MICRO, SAMPLES = range(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBreakdown:
    """Where one rank's mean step went; None where there are no profiled steps."""

    breakdown_ms: Mapping[Category, float]
    detail_ms: DetailMs
    inflation: float
    matmul_share: float | None
    convolution_share: float | None


def step_statistics(window: WindowRecord) -> StepMs:
    """Return the statistics of the counted steps; the mean is the window's wall time a step."""
    rows = [_number(row[STEP]) / 1e6 for row in window.steps]
    seen = summary(rows)
    mean = window.wall_ns / len(rows) / 1e6
    return StepMs(mean=mean, median=seen.median, p05=seen.p05, p95=seen.p95)


def mean_of(window: WindowRecord, column: int) -> float:
    """Return the mean of one column of the counted steps (nanoseconds, or counts)."""
    return sum(_number(row[column]) for row in window.steps) / len(window.steps)


def combine(window: WindowRecord, profiled: Attribution) -> RankBreakdown:
    """Return the breakdown of the mean clean step; the categories sum to it exactly."""
    step = window.wall_ns / len(window.steps)
    fetch = mean_of(window, FETCH)
    mean = profiled.mean
    make = _on_cpu if profiled.device == "cpu" else _on_gpu
    parts, waiting = _fit(*make(step, fetch, profiled), step)
    inflation = median(s.step_ns for s in profiled.steps) / max(
        1.0, median(_number(row[STEP]) for row in window.steps)
    )
    scale = mean.step_ns / step
    if profiled.device == "cpu":  # operators are slowed: the proportion alone is kept
        busy = mean.ns[Category.COMPUTE]
        scale = mean.step_ns / busy * parts[Category.COMPUTE] / step if busy else 0.0
    return RankBreakdown(
        breakdown_ms={c: ns / 1e6 for c, ns in parts.items()},
        detail_ms=_detail(profiled, waiting),
        inflation=inflation,
        matmul_share=_scaled(mean.matmul_share, scale),
        convolution_share=_scaled(mean.convolution_share, scale),
    )


def _scaled(share: float | None, scale: float) -> float | None:
    return None if share is None else min(1.0, share * scale)


def _on_gpu(
    step: float, fetch: float, profiled: Attribution
) -> tuple[dict[Category, float], float]:
    mean = profiled.mean
    parts = {c: float(mean.ns[c]) for c in (Category.COMPUTE, Category.COMM, Category.H2D)}
    # What the device did under a fetch is no wait; the clean fetch may be longer or shorter.
    parts[Category.DATA_WAIT] = max(0.0, fetch - mean.fetch_overlapped_ns)
    parts[Category.HOST] = float(mean.ns[Category.HOST])
    parts[Category.GAP] = step - sum(parts.values())
    return parts, mean.comm_waiting_ns or 0.0


def _on_cpu(
    step: float, fetch: float, profiled: Attribution
) -> tuple[dict[Category, float], float]:
    """Return the parts, and what of comm is waiting.

    A rank waits for another one, whose operators the profiler slows as it does ours: what is no
    transfer for sure has its share of the remainder, as compute and gap have.
    """
    ns = profiled.mean.ns
    waiting = profiled.mean.comm_waiting_ns
    waiting = float(ns[Category.COMM]) if waiting is None else waiting
    transfer, host = ns[Category.COMM] - waiting, float(ns[Category.HOST])
    slowed = ns[Category.COMPUTE] + ns[Category.GAP] + waiting
    rest = step - fetch - transfer - host
    if rest < slowed / MOST_SLOWED:
        scale = max(0.0, step - fetch) / max(1.0, slowed + transfer + host)
        transfer, host, rest = transfer * scale, host * scale, slowed * scale
    compute, waits = (
        rest * part / slowed if slowed else 0.0 for part in (ns[Category.COMPUTE], waiting)
    )
    parts = {
        Category.DATA_WAIT: fetch,
        Category.COMM: transfer + waits,
        Category.HOST: host,
        Category.H2D: 0.0,
        Category.COMPUTE: compute,
        Category.GAP: rest - compute - waits,
    }
    return parts, waits


def _fit(
    parts: dict[Category, float], waiting: float, step: float
) -> tuple[dict[Category, float], float]:
    """Make the parts sum to the step where profiled ones are longer than clean ones leave room.

    Waiting for another rank, which the profiler slows, gives way first.
    """
    known = {c: max(0.0, parts[c]) for c in Category}
    over = sum(known.values()) - step
    less = min(waiting, max(0.0, over))
    known[Category.COMM] -= less
    over -= less
    waiting -= less
    for category in (Category.GAP, Category.HOST, Category.DATA_WAIT):
        less = min(known[category], max(0.0, over))
        known[category] -= less
        over -= less
    total = sum(known.values())
    if total <= 0:
        return known, waiting
    return {c: v * step / total for c, v in known.items()}, waiting * step / total


def _detail(profiled: Attribution, waiting: float) -> DetailMs:
    mean = profiled.mean
    return DetailMs(
        h2d_overlapped=mean.h2d_overlapped_ns / 1e6,
        comm_overlapped=mean.comm_overlapped_ns / 1e6,
        comm_waiting=None if mean.comm_waiting_ns is None else waiting / 1e6,
        gap_sync=None if mean.gap_sync_ns is None else mean.gap_sync_ns / 1e6,
    )


def cautions(window: WindowRecord, found: RankBreakdown | None) -> list[Warn]:
    """Say what a reader must know: the profiler's slowing, uneven steps, evaluation left out."""
    told = []
    if found is not None and found.inflation > INFLATED:
        told.append(Warn(code="profiler_inflation", text=_INFLATION.format(found.inflation - 1)))
    busy = [_number(row[STEP]) - _number(row[FETCH]) for row in window.steps]
    excess = sum(busy) / len(busy) - median(busy)
    if excess > UNEVEN * window.wall_ns / len(busy):
        told.append(Warn(code="uneven_steps", text=_UNEVEN))
    if window.mixed:
        text = f"{window.mixed} steps with an evaluation between them were left out"
        if window.doubtful:
            text += _DOUBTFUL.format(window.doubtful)
        told.append(Warn(code="evaluation_left_out", text=text))
    if window.rollouts:
        told.append(Warn(code="rollouts", text=_ROLLOUTS.format(window.rollouts)))
    return told


_INFLATION = (
    "profiled steps were {:.0%} slower than clean ones; step time and waits are those of clean "
    "steps, device-busy times those of profiled ones, unscaled"
)
_ROLLOUTS = (
    "about every {} updates the model ran without gradients, in training mode and without a "
    "loader: that was taken for rollouts and counted as training. What a step is cannot be told "
    "from outside here: call aiak_tune.step_done(samples=n) where one ends"
)
_DOUBTFUL = (
    "; {} of them only ran the model without gradients, in training mode and without a loader: if "
    "that gathers training data, call aiak_tune.step_done(samples=n) where a step ends"
)
_UNEVEN = (
    "the mean step is well above the median: a few steps take much longer (logging, checkpoints, "
    "other load), and the few profiled steps may not show why"
)


def _number(value: int | None) -> int:
    return 0 if value is None else value
