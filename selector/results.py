"""What a tuning found: trials, confirmation, verdict, plan. Values only.

`Measured | Failed | Pruned` keep every trial with its settings and cause: nothing is dropped.
Field names are the tuning document's (docs/documents.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from aiak_tune.optimizations.base import Numerics, Settings
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import Environment, JobFacts, Warn, WorkloadProfile

SCHEMA = 1
FailureCode = Literal[
    "out_of_memory", "timeout", "crash", "non_finite_loss", "parity", "no_effect",
    "skipped_work", "incompatible", "launch", "interrupted",
]  # fmt: skip
PruneCode = Literal["clearly_slower", "bound_too_small", "memory_predicted"]
Verdict = Literal["running", "faster", "no_change", "failed", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One in-process comparison with the plain computation: relative errors, None with a reason."""

    what: str
    error: float | None
    yard: float | None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a start did beside being fast: the parity gate's evidence.

    `losses` are the first ones, None where not finite; `batches` are hashes of the first batches;
    `updates` how many optimizer updates the window has, `updates_skipped` how many a scaler left
    out; `moved`: whether the watched weights changed.
    """

    losses: tuple[float | None, ...] = ()
    late_losses: tuple[float | None, ...] = ()
    batches: tuple[str, ...] = ()
    samples_per_step: float | None = None
    updates: int = 0
    updates_skipped: int = 0
    moved: bool | None = None
    probes: tuple[ProbeResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A trial that ran its slice: samples per second at the job's own global batch."""

    number: int
    settings: Settings
    samples_per_s: float
    step_ms: float
    duration_s: float
    breakdown_ms: Mapping[Category, float] | None = None
    memory_bytes: int | None = None
    startup_s: float | None = None
    effects: Mapping[str, str] = field(default_factory=dict)
    work: Work = field(default_factory=Work)
    reason_code: str | None = None
    reason: str | None = None
    state: Literal["measured"] = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A trial without a usable figure; `reason` is one a person can act on."""

    number: int
    settings: Settings
    reason_code: FailureCode
    reason: str
    duration_s: float
    log_tail: str | None = None
    state: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """A trial ended early, or never begun, since it could not win."""

    number: int
    settings: Settings
    reason_code: PruneCode
    reason: str
    duration_s: float
    samples_per_s: float | None = None
    step_ms: float | None = None
    breakdown_ms: Mapping[Category, float] | None = None
    memory_bytes: int | None = None
    state: Literal["pruned"] = "pruned"


Trial = Measured | Failed | Pruned


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationRun:
    """One run of the confirmation, in a fresh process; `side` is what ran."""

    pair: int
    side: Literal["baseline", "best", "best_lossless"]
    settings: Settings
    samples_per_s: float | None
    step_ms: float | None
    duration_s: float
    startup_s: float | None = None
    memory_bytes: int | None = None
    work: Work = field(default_factory=Work)
    problem: str | None = None
    disturbed: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """The parity gate's answer: passed only with evidence, `reason` says why it is closed."""

    passed: bool
    metric: str
    delta: float | None
    band: float | None
    steps: int
    baseline_runs: int
    seeds: int = 1
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """Settings that were confirmed; speed-up and interval come from the confirmation alone."""

    settings: Settings
    speedup: float
    ci95: tuple[float, float]
    samples_per_s: float
    step_ms: float
    numerics: Numerics
    parity: Parity
    startup_added_s: float | None = None
    break_even_steps: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The job as written, over all runs of it in this tuning."""

    samples_per_s: float
    ci95: tuple[float, float] | None
    step_ms: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRecord:
    """One catalog entry judged for this job."""

    optimization: str
    fits: bool
    reason: str
    bound: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    """One tuning, finished or not; `verdict` is "running" until it ends."""

    id: str
    created_at: str
    job: JobFacts
    environment: Environment
    numerics_limit: Numerics
    verdict: Verdict = "running"
    verdict_reason: str | None = None
    finished_at: str | None = None
    duration_s: float | None = None
    smallest_visible_gain: float | None = None
    baseline: Baseline | None = None
    best: Winner | None = None
    best_lossless: Winner | None = None
    trials: tuple[Trial, ...] = ()
    confirmation: tuple[ConfirmationRun, ...] = ()
    profile: WorkloadProfile | None = None
    findings: tuple[FindingRecord, ...] = ()
    warnings: tuple[Warn, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanJob:
    """Which job a plan is for; a None fingerprint is not checked."""

    fingerprint: str | None
    model_fingerprint: str | None
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings with their evidence, as written to a plan file."""

    tuning_id: str
    job: PlanJob
    environment: Environment
    settings: Settings
    speedup: float | None
    ci95: tuple[float, float] | None
    numerics: Numerics
    evidence: Literal["measured", "similar", "predicted"] = "measured"
    schema: int = SCHEMA


class TuningStore(Protocol):
    """What the selector needs of a store; `cli` and `api` hand one in."""

    def save(self, tuning: TuningResult) -> None:
        """Insert the tuning or replace the one with its id; durable when it returns."""
        ...

    def find(self, tuning_id: str) -> TuningResult | None:
        """Return the tuning with this id (a unique prefix of 8 or more characters will do)."""
        ...

    def last_unfinished(self, job_fingerprint: str) -> TuningResult | None:
        """Return the newest tuning of this job that is running or was interrupted."""
        ...

    def newest(self, *, limit: int, job_fingerprint: str | None = None) -> tuple[TuningResult, ...]:
        """Return tunings, the newest first."""
        ...
