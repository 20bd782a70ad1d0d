"""What a step may hold beside training: evaluations, which are left out, or rollouts, which stay.

From outside neither can be told for sure. Loops that gather their own data with the model (RL) run
it in training mode, without gradients and without a loader, every few updates; an evaluation runs
now and then, in eval mode or over a loader. Standard library only.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high

from aiak_tune.profiles.clock import NOTHING, ROLLOUT, Asides, StepTimes

FEWEST_ROLLOUTS = 3
MOST_BETWEEN = 16  # updates from one rollout to the next; further apart they look like evaluations


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """The steps that count, and what they usually hold beside training.

    `mixed`: steps left out, of which `doubtful` hold nothing but what a rollout would. `rollouts`:
    updates from one rollout to the next, 0 where there are none.
    """

    kept: tuple[StepTimes, ...]
    usual: Asides
    mixed: int = 0
    rollouts: int = 0
    doubtful: int = 0


def sort_out(steps: Sequence[StepTimes], before: Sequence[Asides] = ()) -> Sorted:
    """Leave out steps with an evaluation in them, unless most have one (a teacher, EMA).

    Args:
        steps: those of the window.
        before: what the steps just before them held, which helps to see a rhythm.
    """
    if not steps:
        return Sorted(kept=(), usual=NOTHING)
    usual = usual_asides(steps)
    gaps = rollout_gaps([*before, *(s.asides for s in steps)])
    if not gaps:
        kept = tuple(s for s in steps if not is_mixed(s, usual))
        doubtful = len(steps) - len(kept) - sum(is_mixed(s, _but_rollouts(usual)) for s in steps)
        return Sorted(kept=kept, usual=usual, mixed=len(steps) - len(kept), doubtful=doubtful)
    usual = _but_rollouts(usual)
    kept = tuple(s for s in steps if not is_mixed(s, usual))
    mixed = len(steps) - len(kept)
    if len(set(gaps)) == 1 and not mixed:
        kept = kept[: len(kept) // gaps[0] * gaps[0] or None]  # each rollout with all its updates
    return Sorted(kept=kept, usual=usual, mixed=mixed, rollouts=round(sum(gaps) / len(gaps)))


def usual_asides(steps: Sequence[StepTimes]) -> Asides:
    """What most steps hold beside training: a teacher's forward, a whole loop in eval mode."""
    return tuple(median_high(counts) for counts in zip(*(s.asides for s in steps), strict=True))


def is_mixed(step: StepTimes, usual: Asides) -> bool:
    """Whether an evaluation lies in the step: far more of a kind than steps usually hold."""
    return any(count > 2 * most for count, most in zip(step.asides, usual, strict=True))


def _but_rollouts(usual: Asides) -> Asides:
    return (*usual[:ROLLOUT], sys.maxsize, *usual[ROLLOUT + 1 :])


def rollout_gaps(asides: Sequence[Asides]) -> list[int]:
    """Return the updates between rollouts that follow each other; none where it has no rhythm.

    A forward of that kind in nearly every step is part of it: a teacher.
    """
    at = [n for n, counts in enumerate(asides) if counts[ROLLOUT]]
    gaps = [after - before for before, after in itertools.pairwise(at)]
    if len(at) < FEWEST_ROLLOUTS or max(gaps) > MOST_BETWEEN or sum(gaps) < 1.5 * len(gaps):
        return []
    return gaps
