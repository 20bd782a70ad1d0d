"""Each step's wall time split into six categories that sum to it (DESIGN.md section 4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from aiak_tune.errors import ProfileError
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.intervals import Intervals
from aiak_tune.profiles.timeline import Timeline, timeline_of
from aiak_tune.profiles.trace import Trace, TraceWarning
from aiak_tune.profiles.trace_hot_spots import HotSpot, hot_spots
from aiak_tune.profiles.trace_kind import CALL_KINDS, DEVICE_KINDS, Kind
from aiak_tune.profiles.trace_steps import StepSpan, find_steps

Claim = Callable[[Timeline], Intervals]


def compute(step: Timeline) -> Intervals:
    """Kernels run; on the CPU, operators."""
    return step.compute


def comm(step: Timeline) -> Intervals:
    """A collective runs."""
    return step.collectives


def comm_wait(step: Timeline) -> Intervals:
    """On the CPU: a collective is waited for."""
    return step.waiting


def h2d(step: Timeline) -> Intervals:
    """A copy to the device runs, or the host stages one (the engine's time understates it)."""
    return step.copies.union(step.staging)


def data_wait(step: Timeline) -> Intervals:
    """The training loop waits for its next batch."""
    return step.fetch


def host(step: Timeline) -> Intervals:
    """The host is away from PyTorch for long: logging, checkpoints, evaluation."""
    return step.away


# The first that holds takes the instant; gap is what none takes.
ON_DEVICE: tuple[tuple[Category, Claim], ...] = (
    (Category.COMPUTE, compute),
    (Category.COMM, comm),
    (Category.H2D, h2d),
    (Category.DATA_WAIT, data_wait),
    (Category.HOST, host),
)
# On the CPU a loader without workers runs operators: they are input time, so the wait wins.
ON_CPU: tuple[tuple[Category, Claim], ...] = (
    (Category.DATA_WAIT, data_wait),
    (Category.COMM, comm_wait),
    (Category.COMPUTE, compute),
    (Category.HOST, host),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBreakdown:
    """One step; the six of `ns` sum to `step_ns`.

    Attributes:
        ns: nanoseconds of each category.
        h2d_overlapped_ns: copies to the device under something that comes first.
        comm_overlapped_ns: collectives likewise.
        comm_waiting_ns: the part of comm that waits for a late rank; None when unknown.
        gap_sync_ns: the part of the gap after a synchronising call; None when unknown.
        fetch_ns: host time waiting for batches, whatever the device did.
        fetch_overlapped_ns: the part of it that is not data_wait.
        matmul_ns: time in matrix products, convolutions and attention.
        convolution_ns: the part of it in convolutions.
    """

    number: int
    step_ns: int
    ns: Mapping[Category, int]
    h2d_overlapped_ns: int
    comm_overlapped_ns: int
    comm_waiting_ns: int | None = None
    gap_sync_ns: int | None
    fetch_ns: int
    fetch_overlapped_ns: int
    matmul_ns: int
    convolution_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanBreakdown:
    """The mean step: the fields of `StepBreakdown`, and shares of the step."""

    step_ns: float
    ns: Mapping[Category, float]
    h2d_overlapped_ns: float
    comm_overlapped_ns: float
    comm_waiting_ns: float | None = None
    gap_sync_ns: float | None
    fetch_ns: float
    fetch_overlapped_ns: float
    matmul_share: float | None
    convolution_share: float | None

    def share(self, category: Category) -> float:
        """Part of the step, 0 to 1."""
        return self.ns[category] / self.step_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What one rank's trace says.

    Attributes:
        device: cuda, rocm, xpu, gpu (which is unknown) or cpu.
        steps: in order of time, at least one.
        top: the kernels (on the CPU: operators, their own time) that take most of the steps.
        warnings: what was missing or mended; a number it touches is no measurement of zero.
    """

    device: str
    rank: int
    world_size: int
    steps: tuple[StepBreakdown, ...]
    mean: MeanBreakdown
    top: tuple[HotSpot, ...]
    warnings: tuple[TraceWarning, ...]


def attribute(
    trace: Trace, *, steps: Collection[int] | None = None, late: Intervals | None = None
) -> Attribution:
    """Split each step of `trace`; `steps` picks some by their number.

    `late`: when its collectives waited for a late rank (trace_waiting.py); None is unknown.

    Raises:
        ProfileError: the trace has no step, or none of those asked for.
    """
    warnings = list(trace.warnings)
    found = find_steps(trace, warnings)
    spans = [s for s in found if steps is None or s.number in steps]
    if not spans:
        has = ", ".join(str(s.number) for s in found) or "none"
        raise ProfileError(f"no step to attribute: the trace has {has}")
    warnings += missing_signals(trace)
    timeline = timeline_of(trace)
    order = ON_DEVICE if trace.of_kind(*DEVICE_KINDS).any() else ON_CPU
    split = tuple(break_down(timeline, span, order, late) for span in spans)
    known = trace.of_kind(Kind.KERNEL, Kind.OPERATOR).any()
    return Attribution(
        device=trace.device,
        rank=trace.rank,
        world_size=trace.world_size,
        steps=split,
        mean=mean_of(split, matmul_known=bool(known)),
        top=hot_spots(trace, spans),
        warnings=tuple(warnings),
    )


def break_down(
    timeline: Timeline,
    span: StepSpan,
    order: tuple[tuple[Category, Claim], ...],
    late: Intervals | None = None,
) -> StepBreakdown:
    """Give every instant of one step to the first category of `order` that claims it."""
    step = timeline.clip(span.start, span.end)
    rest = Intervals.span(span.start, span.end)
    ns = dict.fromkeys(Category, 0)
    waiting = None
    for category, claim in order:
        wanted = claim(step)
        taken = rest.intersect(wanted)
        ns[category] = taken.total_ns
        if category is Category.COMM and late is not None:
            waiting = taken.intersect(late).total_ns
        rest = rest.minus(wanted)
    ns[Category.GAP] = rest.total_ns
    before_h2d = step.compute.union(step.collectives)
    fetch_ns = step.fetch.total_ns
    drained = step.drained
    return StepBreakdown(
        number=span.number,
        step_ns=span.end - span.start,
        ns=ns,
        h2d_overlapped_ns=step.copies.intersect(before_h2d).total_ns,
        comm_overlapped_ns=step.collectives.total_ns - ns[Category.COMM],
        comm_waiting_ns=waiting,
        gap_sync_ns=None if drained is None else rest.intersect(drained).total_ns,
        fetch_ns=fetch_ns,
        fetch_overlapped_ns=fetch_ns - ns[Category.DATA_WAIT],
        matmul_ns=step.matmul.total_ns,
        convolution_ns=step.convolution.total_ns,
    )


def mean_of(steps: tuple[StepBreakdown, ...], *, matmul_known: bool = True) -> MeanBreakdown:
    """Average steps; `steps` must not be empty."""

    def mean(get: Callable[[StepBreakdown], int | None]) -> float:
        return sum(get(step) or 0 for step in steps) / len(steps)

    step_ns = mean(lambda s: s.step_ns)
    waiting_known = all(s.comm_waiting_ns is not None for s in steps)
    sync_known = all(s.gap_sync_ns is not None for s in steps)
    return MeanBreakdown(
        step_ns=step_ns,
        ns={c: mean(lambda s, c=c: s.ns[c]) for c in Category},  # type: ignore[misc]
        h2d_overlapped_ns=mean(lambda s: s.h2d_overlapped_ns),
        comm_overlapped_ns=mean(lambda s: s.comm_overlapped_ns),
        comm_waiting_ns=mean(lambda s: s.comm_waiting_ns) if waiting_known else None,
        gap_sync_ns=mean(lambda s: s.gap_sync_ns) if sync_known else None,
        fetch_ns=mean(lambda s: s.fetch_ns),
        fetch_overlapped_ns=mean(lambda s: s.fetch_overlapped_ns),
        matmul_share=mean(lambda s: s.matmul_ns) / step_ns if matmul_known else None,
        convolution_share=mean(lambda s: s.convolution_ns) / step_ns if matmul_known else None,
    )


def missing_signals(trace: Trace) -> list[TraceWarning]:
    """Say which kinds of event the trace lacks, since their time would read as zero."""
    on_device = bool(trace.of_kind(*DEVICE_KINDS).any())
    has = {kind: bool(trace.of_kind(kind).any()) for kind in Kind}
    wants_device = trace.device != "cpu" or any(
        has[Kind.HOST_COLLECTIVE] and name.startswith("nccl:") for name in trace.names
    )
    checks = (
        (
            not on_device and wants_device,
            "no_device_events",
            "the job used a device but the trace has none of its events (is another profiler"
            " on it, or a permission missing?): the split is the host's view",
        ),
        (
            on_device and not has[Kind.RUNTIME],
            "no_runtime_calls",
            "no runtime calls recorded: synchronisation and staging of copies are unknown",
        ),
        (
            not any(has[kind] for kind in CALL_KINDS),
            "no_host_events",
            "no operators or calls recorded: gap and host cannot be told apart",
        ),
        (
            not has[Kind.FETCH],
            "no_fetch_marks",
            "no DataLoader in the trace: waiting for input, if any, is in gap and host",
        ),
    )
    return [TraceWarning(code=code, text=text) for missing, code, text in checks if missing]
