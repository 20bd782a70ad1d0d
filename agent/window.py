"""The counted window when it is full: its steps, those with an evaluation left out."""

from __future__ import annotations

from collections.abc import Sequence

from aiak_tune.agent.records import WindowRecord
from aiak_tune.profiles.asides import sort_out
from aiak_tune.profiles.clock import Asides, StepTimes


def closed(
    steps: Sequence[StepTimes], before: Sequence[Asides], wall_ns: int, skipped: int
) -> tuple[WindowRecord, Asides]:
    """Return the window, and what its steps usually hold beside training.

    `before`: of the steps before it; `skipped`: updates that a GradScaler left out.
    """
    found = sort_out(steps, before)
    if len(found.kept) < len(steps):
        wall_ns -= sum(s.step_ns for s in steps) - sum(s.step_ns for s in found.kept)
    kept = {s.end_ns for s in found.kept}
    window = WindowRecord(
        wall_ns=wall_ns,
        steps=[list(s.row) for s in found.kept],
        mixed=found.mixed,
        updates_skipped=skipped,
        rollouts=found.rollouts,
        doubtful=found.doubtful,
        left_out=[at for at, s in enumerate(steps) if s.end_ns not in kept],
    )
    return window, found.usual
