"""From what a start left behind to figures: throughput, step times, breakdown, the profile."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import median_high
from typing import Any

from aiak_tune.agent.records import SliceRecord
from aiak_tune.agent.spec import SlicePlan
from aiak_tune.profiles.hardware import host_facts
from aiak_tune.profiles.workload import (
    Environment,
    JobFacts,
    LoaderFacts,
    ModelFacts,
    OptimizerFacts,
    RankFacts,
    StepFacts,
    Warn,
    WorkloadProfile,
)
from aiak_tune.selector.breakdown import (
    BATCHES,
    MICRO,
    SAMPLES,
    STEP,
    mean_of,
    step_statistics,
)
from aiak_tune.selector.ranks import (
    RankView,
    aligned,
    slowest_view,
    views_of,
    warnings_of,
    window_of,
)
from aiak_tune.selector.side_effects import side_effects

FEWEST_STEPS = 5
NO_LOADER = (
    "no DataLoader of torch was seen to feed the training: what the job spends on its batches in "
    "code of its own is not in data_wait, but in host and gap (on a CPU also in compute)"
)


def samples_per_step(record: SliceRecord) -> float | None:
    """Return one rank's samples a step: counted at the loader, else the batch's leading size."""
    window = window_of(record)
    # Who fetches ahead has steps without a batch; samples without one are what the job said.
    fetching = [n for n, row in enumerate(window.steps) if row[BATCHES] or row[SAMPLES] is not None]
    if fetching and all(window.steps[n][SAMPLES] is not None for n in fetching):
        rows = _paired(_fed(window.steps, fetching))
        return mean_of(replace(window, steps=rows), SAMPLES)
    shapes = record.facts.get("batch_shapes") or []
    if shapes and shapes[0]:
        return float(shapes[0][0] * max(1.0, mean_of(window, MICRO)))
    return None


def _fed(rows: list[list[int | None]], fetching: Sequence[int]) -> list[list[int | None]]:
    """Leave out the steps at the end that a loader no longer feeds.

    `itertools.cycle` keeps what the first epoch gave. Steps without a batch in between are no
    longer than others.
    """
    pauses = [after - before for before, after in itertools.pairwise((-1, *fetching))]
    fed = fetching[-1] + 1
    return rows[:fed] if len(rows) - fed >= max(2, 2 * max(pauses)) else rows


def _paired(rows: list[list[int | None]]) -> list[list[int | None]]:
    """Leave out a step with a batch less or more whose counterpart lies outside the window.

    Who fetches one ahead fetches none in an epoch's last step, and two in the next one's first.
    """
    counts = [row[BATCHES] or 0 for row in rows]
    usual = median_high(counts)
    over = sum(counts) - usual * len(rows)
    odd = [at for at, count in enumerate(counts) if over and count - usual == over]
    if not odd or abs(over) > usual:
        return rows
    return rows[: odd[-1]] + rows[odd[-1] + 1 :]


def throughput(records: Sequence[SliceRecord]) -> float:
    """Return samples (steps, where nobody can count samples) per second over all ranks.

    The window's wall time of the slowest rank counts: the others wait for it.
    """
    each = [samples_per_step(record) for record in records]
    windows = [window_of(record) for record in records]
    if any(samples is None for samples in each):
        total = float(min(len(w.steps) for w in windows))  # a step is one of all ranks
    else:
        total = sum((s or 0.0) * len(w.steps) for s, w in zip(each, windows, strict=True))
    return total / (max(w.wall_ns for w in windows) / 1e9)


def startup_s(record: SliceRecord) -> float | None:
    """Return the seconds from the process's start to its first steps, the steps' own time apart."""
    if record.startup_s is None:
        return None
    window = window_of(record)
    mean_s = window.wall_ns / len(window.steps) / 1e9
    return max(0.0, record.startup_s - record.warmup_steps * mean_s)


def environment_of(record: SliceRecord) -> Environment:
    """Return where it ran: what the job's torch said, and what the host says."""
    told = dict(record.environment)
    capability = told.get("compute_capability")
    told["compute_capability"] = tuple(capability) if capability else None
    ranks = {"ranks_per_node": record.here, "nodes": record.nodes}
    return Environment(**host_facts() | told | ranks)


OF_THE_PROCESS = (
    "shapes_vary", "threads", "threads_by", "tf32", "precision_by", "cudnn_benchmark",
    "cudnn_benchmark_by", "deterministic", "allocator_by", "device_requests",
    "page_faults",
)  # fmt: skip


def _bound_to(cores: int | None) -> str | None:
    """Say so where the job has fewer cores than it was started with."""
    given = len(os.sched_getaffinity(0))
    return None if cores is None or cores >= given else f"it is bound to {cores} of {given}"


def job_of(record: SliceRecord, base: JobFacts) -> JobFacts:
    """Return the job's facts: `base` is what the command alone told."""
    facts = record.facts
    process: dict[str, Any] = {name: facts.get(name) for name in OF_THE_PROCESS}
    process["affinity_by"] = facts.get("affinity_by") or _bound_to(facts.get("cores"))
    optimizer = _facts(OptimizerFacts, facts.get("optimizer_facts"))
    if optimizer is not None and "cpu" not in optimizer.devices:
        optimizer = replace(optimizer, step_ms=None)  # the host's time to issue it says little
    return replace(
        base,
        model_fingerprint=facts.get("model_fingerprint"),
        model=_facts(ModelFacts, facts.get("model")),
        optimizer=facts.get("optimizer"),
        optimizer_facts=optimizer,
        batch_shapes=tuple(tuple(s) for s in facts.get("batch_shapes", ())),
        dtype=facts.get("dtype"),
        loader=_facts(LoaderFacts, facts.get("loader")),
        ddp=bool(facts.get("ddp")),
        amp=bool(facts.get("amp")),
        grad_scaler=bool(facts.get("grad_scaler")),
        compiled=bool(facts.get("compiled")),
        seeded=bool(facts.get("seeded")),
        **process,
    )


def _facts(cls: type[Any], told: Mapping[str, Any] | None) -> Any:
    if told is None:
        return None
    values = {"cls" if k == "class" else k: v for k, v in told.items()}
    names = {f.name for f in fields(cls)}
    return cls(
        **{k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in names}
    )


def profile_of(
    records: Sequence[SliceRecord], run_dir: Path, base: JobFacts, plan: SlicePlan
) -> WorkloadProfile:
    """Return the profile of one start; `records` are all ranks' with their windows."""
    records = aligned(records)
    views = views_of(records, run_dir)
    shown = slowest_view(views)
    slowest, chosen = shown.record, shown.found
    warnings = warnings_of(views, shown)
    window = window_of(slowest)
    if len(window.steps) < FEWEST_STEPS or slowest.status == "short":
        text = f"only {len(window.steps)} steps could be counted: the job ended early"
        warnings.append(Warn(code="too_few_steps", text=text))
    if len(records) < slowest.world_size:
        text = f"only {len(records)} of the job's {slowest.world_size} ranks were seen here"
        warnings.append(Warn(code="ranks_elsewhere", text=f"{text}: the figures are theirs"))
    job = job_of(slowest, base)
    each = [samples_per_step(r) for r in records]
    counted = None if any(s is None for s in each) else sum(s for s in each if s is not None)
    if counted is None:
        text = "samples could not be counted: throughput is in steps per second"
        warnings.append(Warn(code="samples_unknown", text=text))
    if job.loader is None:
        warnings.append(Warn(code="no_loader", text=NO_LOADER))
    warnings += side_effects(run_dir)
    share = None if chosen is None else chosen.matmul_share
    fp32 = None if share is None else (share if job.dtype == "float32" and not job.amp else 0.0)
    profile = WorkloadProfile(
        job=job,
        environment=environment_of(slowest),
        steps=StepFacts(
            counted=len(window.steps),
            warmup=slowest.warmup_steps,
            profiled=len(slowest.profiled),
            step_ms=step_statistics(window),
            samples_per_step=counted,
            samples_per_s=None if counted is None else throughput(records),
            profiler_inflation=None if chosen is None else chosen.inflation,
        ),
        breakdown_ms=None if chosen is None else chosen.breakdown_ms,
        ranks=tuple(_rank_facts(view) for view in views),
        slowest_rank=slowest.rank,
        matmul_share=share,
        fp32_matmul_share=fp32,
        convolution_share=None if chosen is None else chosen.convolution_share,
        memory_bytes=slowest.memory_bytes,
        warnings=tuple(warnings),
    )
    return profile if chosen is None else replace(profile, detail_ms=chosen.detail_ms)


def _rank_facts(view: RankView) -> RankFacts:
    found = view.found
    return RankFacts(
        rank=view.record.rank,
        step_ms=view.step_ms,
        breakdown_ms=None if found is None else found.breakdown_ms,
        comm_waiting_ms=view.waiting_ms,
    )


def step_times_ms(record: SliceRecord) -> tuple[float, ...]:
    """Return the counted steps' times."""
    return tuple((row[STEP] or 0) / 1e6 for row in window_of(record).steps)
