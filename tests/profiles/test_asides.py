"""Evaluations and rollouts between updates: which steps count, and what is said of them."""

from __future__ import annotations

import pytest

from aiak_tune.profiles.asides import sort_out
from aiak_tune.profiles.clock import (
    BATCH_NO_GRAD,
    FORWARD_EVAL_MODE,
    FORWARD_NO_GRAD,
    NOTHING,
    ROLLOUT,
    StepClock,
    StepTimes,
)


def steps_with(kind: int, counts: list[int]) -> list[StepTimes]:
    clock, made = StepClock(), []
    for count in counts:
        for _ in range(count):
            clock.aside(kind)
        step = clock.end_update(1)
        assert step is not None
        made.append(step)
    return made


KINDS = pytest.mark.parametrize("kind", [FORWARD_NO_GRAD, FORWARD_EVAL_MODE, BATCH_NO_GRAD])


@KINDS
@pytest.mark.parametrize(
    ("counts", "kept"),
    [
        ([0, 0, 0, 5, 0, 0, 1, 0], 6),  # a validation now and then
        ([1, 1, 1, 1], 4),  # a teacher in every step
        ([1, 1, 9, 1, 1], 4),  # a teacher, and a validation
        ([2, 1, 2, 2, 1], 5),  # a teacher with accumulation
        ([0, 3, 0, 3, 0, 3], 6),  # every second step: who knows
        ([0], 1),
        ([4], 1),
    ],
)
def test_evaluation_is_left_out_unless_most_steps_hold_one(
    kind: int, counts: list[int], kept: int
) -> None:
    assert len(sort_out(steps_with(kind, counts)).kept) == kept


def test_a_frozen_model_in_eval_mode_is_trained_and_its_validation_still_seen() -> None:
    clock, made = StepClock(), []
    for number in range(9):
        clock.aside(FORWARD_EVAL_MODE)
        if number == 4:
            clock.aside(FORWARD_NO_GRAD)
        step = clock.end_update(1)
        assert step is not None
        made.append(step)
    assert list(sort_out(made).kept) == made[:4] + made[5:]


def test_no_step_is_no_step() -> None:
    assert sort_out([]).kept == ()


@pytest.mark.parametrize(
    ("counts", "before", "kept", "rollouts"),
    [
        ([9, 0, 0, 0] * 5, [], 20, 4),
        ([0, 9, 0, 0] * 5 + [0], [], 20, 4),  # each rollout with all its updates
        ([9, 0] * 5, [], 10, 2),
        ([9, 0, 0, 0, 0, 0, 0, 0] * 2, [9, *[0] * 7], 16, 8),  # the rhythm began before
        ([7, 0, 0, 9, 0, 8, 0, 0], [], 8, 2),  # updates until they have converged
        ([9, *[0] * 30] * 3, [], 90, 0),  # so far apart it is an evaluation
        ([0, 0, 9, 0, 0, 9, 0, 0], [], 6, 0),  # twice is no rhythm
        ([3] * 8, [], 8, 0),  # a teacher
    ],
)
def test_rollouts_are_training(
    counts: list[int], before: list[int], kept: int, rollouts: int
) -> None:
    found = sort_out(steps_with(ROLLOUT, counts), [(*NOTHING[:ROLLOUT], count) for count in before])
    assert (len(found.kept), found.rollouts) == (kept, rollouts)
    assert found.doubtful == found.mixed
    assert rollouts == 0 or found.mixed == 0


def test_an_evaluation_between_rollouts_is_left_out() -> None:
    clock, made = StepClock(), []
    for number in range(20):
        if number % 4 == 0:
            clock.aside(ROLLOUT)
        if number == 9:
            clock.aside(BATCH_NO_GRAD)
        step = clock.end_update(1)
        assert step is not None
        made.append(step)
    found = sort_out(made)
    assert list(found.kept) == made[:9] + made[10:]
    assert (found.rollouts, found.mixed, found.doubtful) == (4, 1, 0)
