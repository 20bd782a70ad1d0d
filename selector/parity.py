"""The parity gate: evidence that the settings leave the training what it was.

(a) the in-process comparison with the plain computation, (b) the same work done on the same
batches, (c) losses of paired runs inside the band of disturbed baselines. Without evidence it is
closed, with that reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aiak_tune.optimizations.base import Numerics
from aiak_tune.selector.judging import broken_work
from aiak_tune.selector.lossband import ULP, Losses, band, check
from aiak_tune.selector.results import Parity, Work

PROBE_FACTOR = 2.0
PROBE_FLOOR = 1e-6  # a few float32 roundings: below, neither side is better than the other


def parity(
    plain: Work,
    disturbed: Sequence[Work],
    changed: Sequence[Work],
    *,
    probed: bool,
    ulp: float = ULP[Numerics.LOSSLESS],
) -> Parity:
    """Judge the settings' runs.

    Args:
        plain: the baseline's undisturbed run.
        disturbed: baseline runs whose start was moved by one unit in the last place.
        changed: runs with the settings, of the same seeds, at least one.
        ulp: the relative unit in the last place of the settings' numerics class.
        probed: whether a comparison in the process was due (a model or an optimizer is changed).
    """
    limit = band(_losses(plain), [_losses(w) for w in disturbed], ulp=ulp)
    verdicts = [check(limit, _losses(w)) for w in changed]
    worst = max(verdicts, key=lambda v: (not v.passed, v.delta or 0.0))
    reason = worst.reason
    if worst.passed:
        reason = _other_evidence(plain, disturbed, changed, probed=probed)
    return Parity(
        passed=reason is None,
        metric=worst.metric,
        delta=worst.delta,
        band=worst.band,
        steps=worst.steps,
        baseline_runs=worst.baseline_runs,
        reason=reason,
    )


def _other_evidence(
    plain: Work, disturbed: Sequence[Work], changed: Sequence[Work], *, probed: bool
) -> str | None:
    for work in changed:
        code, why = broken_work(work, plain)
        if code is not None:
            return why
        if not work.moved:
            return "the weights did not change, or none could be watched"
    return _batches_differ(plain, disturbed, changed) or _probes(changed, probed=probed)


def _batches_differ(plain: Work, disturbed: Sequence[Work], changed: Sequence[Work]) -> str | None:
    """Where all baselines saw the same batches, the settings' runs must have seen them too."""
    if any(w.batches != plain.batches for w in disturbed):
        return None
    for work in changed:
        for number, (mine, theirs) in enumerate(zip(work.batches, plain.batches, strict=False)):
            if mine != theirs:
                return f"batch {number + 1} is another one than in the job as written"
        if len(work.batches) < len(plain.batches):
            return f"only {len(work.batches)} of the first {len(plain.batches)} batches were seen"
    return None


def _probes(changed: Sequence[Work], *, probed: bool) -> str | None:
    probes = [p for work in changed for p in work.probes]
    if probed and not probes:
        return "the changed computation could not be compared with the plain one in the process"
    for p in probes:
        if p.error is None or p.yard is None:
            return f"the {p.what} could not be compared with the plain one: {p.problem}"
        if not math.isfinite(p.yard):
            return f"the {p.what}'s plain computation gives values that are not finite"
        if not p.error <= max(PROBE_FACTOR * p.yard, PROBE_FLOOR):
            return (
                f"the {p.what}'s error is {p.error:.2g}, more than twice that of the plain "
                f"computation in its precision ({p.yard:.2g})"
            )
    return None


def _losses(work: Work) -> Losses:
    samples = None
    if work.samples_per_step is not None:
        samples = round(work.samples_per_step * len(work.losses))
    return Losses(values=work.losses, steps=len(work.losses), samples=samples)
