"""Parity by losses: a candidate stays in the band of disturbed unmodified runs, or is refused.

`band` takes the reference run (the job as written) and runs of it whose start was moved by one
unit in the last place of the precision judged; `check` compares a candidate's losses with the
reference's, same seed and same samples. No evidence closes the gate. Which faults a short band
sees, and which it cannot, is in docs/decisions/0003-loss-band.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from aiak_tune.optimizations.base import Numerics
from aiak_tune.selector.results import Parity

# Relative size of one unit in the last place that disturbs the weights, by numerics class.
ULP = {Numerics.LOSSLESS: 2.0**-23, Numerics.CHANGING: 2.0**-8, Numerics.CONVERGENCE: 2.0**-8}
WIDTH = 3.0
MIN_STEPS = 8
# The disturbance comes once, rounding at every step: float32 units of the loss that are always
# free, at the start and more for each step (channels_last on a small CNN: 60 after 30 steps).
FREE_ULPS = 16
FREE_ULPS_A_STEP = 8
# Deviations of a chaotic job grow tenfold in two steps, and rounding may start them earlier.
AHEAD = 3

Code = Literal["parity", "non_finite_loss", "skipped_work"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What one run's first steps gave: losses in order (None: none seen), and the work done.

    `steps` are optimizer updates that took place, `samples` what went through (None: unknown).
    """

    values: tuple[float | None, ...]
    steps: int
    samples: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBand:
    """How far a run may be from the reference: in the mean of all steps, and at each step.

    `limits` has the steps (from 0) with a loss in the reference and every disturbed run.
    `problem` says why there is no band.
    """

    reference: Losses
    limits: dict[int, float]
    mean: float | None
    runs: int
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityVerdict:
    """The gate's answer; `reason` and `reason_code` are None only when it passed."""

    passed: bool
    metric: str
    delta: float | None
    band: float | None
    steps: int
    baseline_runs: int
    reason: str | None = None
    reason_code: Code | None = None

    def record(self, *, seeds: int = 1) -> Parity:
        """Return it as the tuning document has it."""
        return Parity(
            passed=self.passed, metric=self.metric, delta=self.delta, band=self.band,
            steps=self.steps, baseline_runs=self.baseline_runs, seeds=seeds, reason=self.reason,
        )  # fmt: skip


def band(
    reference: Losses, disturbed: Sequence[Losses], *, ulp: float = ULP[Numerics.LOSSLESS]
) -> LossBand:
    """Three times the largest deviation of the disturbed runs, never below rounding's own.

    `ulp` is the class's unit in the last place: half of it, of the loss itself, is always free.
    The mean is compared with the largest of the runs' means, a step with the largest deviation
    up to `AHEAD` steps after it: a fault shows in early steps, where a chaotic job is still calm.
    """
    runs = (reference, *disturbed)
    common = [i for i in _steps(reference) if all(i in _steps(run) for run in disturbed)]
    problem = _unusable(runs, common)
    if problem is not None:
        return LossBand(
            reference=reference, limits={}, mean=None, runs=len(disturbed), problem=problem
        )
    plain = _steps(reference)
    off = [{i: abs(_steps(run)[i] - plain[i]) for i in common} for run in disturbed]
    usual = math.fsum(abs(plain[i]) for i in common) / len(common)
    free = {
        i: max(abs(plain[i]), usual) * max(2.0**-23 * (FREE_ULPS + FREE_ULPS_A_STEP * i), ulp / 2)
        for i in common
    }
    limits = {
        i: max(free[i], WIDTH * max(run[j] for run in off for j in common if j <= i + AHEAD))
        for i in common
    }
    means = [math.fsum(run.values()) / len(common) for run in off]
    mean = max(WIDTH * max(means), math.fsum(free.values()) / len(common))
    return LossBand(reference=reference, limits=limits, mean=mean, runs=len(disturbed))


def check(limit: LossBand, candidate: Losses) -> ParityVerdict:
    """Judge the candidate's losses and counted work against the band."""
    seen, plain = _steps(candidate), _steps(limit.reference)
    common = [i for i in sorted(limit.limits) if i in seen]
    code, reason = _closed(limit, candidate, common)
    off = {i: abs(seen[i] - plain[i]) for i in common}
    delta = math.fsum(off.values()) / len(off) if off else None
    if reason is None and delta is not None and limit.mean is not None:
        worst = max(common, key=lambda i: off[i] / limit.limits[i])
        if off[worst] > limit.limits[worst]:
            code, reason = "parity", (
                f"at step {worst + 1} the loss is {off[worst]:.2g} from the baseline's, "
                f"{limit.limits[worst]:.2g} is the most that rounding explains"
            )  # fmt: skip
        elif delta > limit.mean:
            code, reason = "parity", (
                f"the losses are {delta:.2g} from the baseline's on average, "
                f"{limit.mean:.2g} is the most that rounding explains"
            )  # fmt: skip
    span = f"{common[0] + 1}-{common[-1] + 1}" if common else "none"
    return ParityVerdict(
        passed=reason is None, metric=f"mean |loss - baseline| over steps {span}",
        delta=delta if delta is None or math.isfinite(delta) else None, band=limit.mean,
        steps=len(common), baseline_runs=limit.runs, reason=reason, reason_code=code,
    )  # fmt: skip


def _closed(
    limit: LossBand, candidate: Losses, common: Sequence[int]
) -> tuple[Code | None, str | None]:
    """Why the gate is closed before any comparison, or (None, None)."""
    seen, plain = _steps(candidate), limit.reference
    bad = [i for i, value in seen.items() if not math.isfinite(value)]
    if bad:
        return "non_finite_loss", f"the loss was {seen[bad[0]]} at step {bad[0] + 1}"
    if limit.problem is not None:
        return "parity", limit.problem
    if not seen:
        return "parity", "no loss was seen"
    if (candidate.steps, candidate.samples) != (plain.steps, plain.samples):
        return "skipped_work", (
            f"{candidate.steps} optimizer steps over {candidate.samples} samples, "
            f"{plain.steps} over {plain.samples} in the baseline"
        )
    if len(common) < MIN_STEPS:
        return "parity", f"only {len(common)} steps with losses to compare, {MIN_STEPS} needed"
    return None, None


def _unusable(runs: Sequence[Losses], common: Sequence[int]) -> str | None:
    """Why these unmodified runs give no band, or None."""
    plain = _steps(runs[0])
    if not plain:
        return "no loss was seen in the baseline"
    if len(runs) < 2:
        return "no disturbed run of the baseline to compare with"
    if any(not math.isfinite(value) for run in runs for value in _steps(run).values()):
        return "the baseline's own loss is not finite"
    if len(common) < MIN_STEPS:
        return f"only {len(common)} steps with losses in the baseline, {MIN_STEPS} needed"
    if len({plain[i] for i in common}) == 1:
        return "the baseline's loss did not move: what was seen may not be the loss"
    return None


def _steps(run: Losses) -> dict[int, float]:
    return {i: value for i, value in enumerate(run.values) if value is not None}
