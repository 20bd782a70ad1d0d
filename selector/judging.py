"""What one start is worth: a measured trial, or a failed one with its reason."""

from __future__ import annotations

from collections.abc import Mapping

from aiak_tune.profiles.category import Category
from aiak_tune.selector.results import Failed, FailureCode, Measured, Pruned, Trial, Work
from aiak_tune.selector.starts import Start

SAMPLES_TOLERANCE = 0.02
PRUNED = "clearly slower"


def trial_of(
    number: int,
    start: Start,
    *,
    plain: Work | None,
    breakdown: Mapping[Category, float] | None,
    keep_log: bool,
) -> Trial:
    """Return the trial that a start makes; `plain` is what the baseline did (None: this is it)."""
    outcome = start.outcome
    if outcome.stopped and outcome.stopped.startswith(PRUNED):
        return Pruned(
            number=number,
            settings=start.settings,
            reason_code="clearly_slower",
            reason=outcome.stopped,
            duration_s=outcome.duration_s,
        )
    code, reason = failure_of(start, plain)
    if code is not None:
        tail = start.problem.tail if start.problem and keep_log else None
        return Failed(
            number=number,
            settings=start.settings,
            reason_code=code,
            reason=reason,
            duration_s=outcome.duration_s,
            log_tail=tail,
        )
    return Measured(
        number=number,
        settings=start.settings,
        samples_per_s=start.samples_per_s,
        step_ms=start.step_ms,
        duration_s=outcome.duration_s,
        breakdown_ms=breakdown,
        memory_bytes=start.rank.memory_bytes,
        startup_s=start.startup_s,
        effects={k: v for k, v in start.effects.items() if v},
        work=start.work,
    )


def failure_of(start: Start, plain: Work | None) -> tuple[FailureCode | None, str]:
    """Return why the start's figure cannot count, or (None, "")."""
    if start.problem is not None:
        return start.problem.code, start.problem.text
    without = [name for name, text in start.effects.items() if text is None]
    if without:
        told = {w[0]: w[1] for r in start.records for w in r.warnings}
        why = told.get(without[0], "nothing changed in the job")
        return "no_effect", f"{without[0]} had no effect: {why}"
    return broken_work(start.work, plain)


def broken_work(work: Work, plain: Work | None) -> tuple[FailureCode | None, str]:
    """Return what is wrong with the work done: fewer updates or samples are no speed-up."""
    for where, losses in (("", work.losses), (" near the end of the slice", work.late_losses)):
        if None in losses:
            step = losses.index(None) + 1
            return "non_finite_loss", f"the loss was not finite at backward {step}{where}"
    if plain is None:
        return None, ""
    if work.moved is False and plain.moved:
        return "skipped_work", "the weights did not change"
    if work.updates_skipped > plain.updates_skipped:
        return "skipped_work", f"{work.updates_skipped} optimizer updates were skipped"
    mine, theirs = work.samples_per_step, plain.samples_per_step
    if mine and theirs and abs(mine / theirs - 1) > SAMPLES_TOLERANCE:
        return "skipped_work", f"{mine:.1f} samples a step instead of {theirs:.1f}"
    return None, ""
