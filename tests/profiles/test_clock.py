"""The step clock: nanoseconds that sum to the step, steps that end where they should."""

from __future__ import annotations

from itertools import cycle, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiak_tune.profiles import clock as module
from aiak_tune.profiles.clock import (
    BACKWARD,
    FETCH,
    OPTIMIZER,
    StepClock,
    period_of,
)


class Time:
    """A clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000
        monkeypatch.setattr(module, "perf_counter_ns", lambda: self.now)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["open", "open", "close", "close", "end", "restart"]),
        st.sampled_from([FETCH, BACKWARD, OPTIMIZER]),
        st.integers(0, 10**9),
    ),
    max_size=60,
)


@given(events=EVENTS)
def test_every_nanosecond_belongs_to_the_innermost_span(
    events: list[tuple[str, int, int]],
) -> None:
    """Against the plain definition, also where a step ends inside spans."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        time = Time(monkeypatch)
        clock = StepClock()
        start, expected = time.now, [0, 0, 0]
        stack: list[int] = []
        for what, kind, passed in events:
            time.now += passed
            if stack:
                expected[stack[-1]] += passed
            if what == "open":
                clock.open(kind)
                stack.append(kind)
            elif what == "close" and stack:
                clock.close()
                stack.pop()
            elif what == "restart":
                clock.restart()
                start, expected = time.now, [0, 0, 0]
            elif what == "end":
                step = clock.end_update(1)
                assert step is not None
                parts = [step.fetch_ns, step.backward_ns, step.optimizer_ns]
                assert parts == expected
                assert step.step_ns == time.now - start
                assert sum(parts) <= step.step_ns
                start, expected = time.now, [0, 0, 0]


def test_steps_follow_each_other_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(monkeypatch)
    clock = StepClock()
    began, total = time.now, 0
    for passed in (5, 70, 11):
        time.now += passed
        step = clock.end_update(1)
        assert step is not None
        total += step.step_ns
    assert total == time.now - began


def turns(pattern: str, n: int) -> list[int]:
    return [ord(c) for c in islice(cycle(pattern), n)]


@pytest.mark.parametrize(
    ("ids", "period"),
    [
        ([], None),
        (turns("a", 1), 1),
        (turns("a", 9), 1),
        (turns("ab", 5), None),
        (turns("ab", 6), 2),
        (turns("ccccca", 18), 6),
        (turns("ccccca", 21), 6),
        (turns("a", 5) + turns("ab", 6), 2),
        (turns("a", 5) + turns("b", 10), None),
        (turns("a", 5) + turns("b", 40), 1),
        ([1, 2, 1, 1, 2, 2, 1, 2, 2, 2, 1, 1, 1], None),
    ],
)
def test_the_period_of_several_optimizers(ids: list[int], period: int | None) -> None:
    assert period_of(ids) == period


@pytest.mark.parametrize("pattern", ["a", "dg", "ccccca", "xyz"])
@pytest.mark.parametrize("more", [0, 1, 2, 3])
def test_a_step_ends_with_the_last_optimizer_of_its_turn(pattern: str, more: int) -> None:
    clock = StepClock()
    updates = turns(pattern, 3 * len(pattern) + more + 4 * len(pattern))
    known = 3 * len(pattern) + more
    for update in updates[:known]:
        clock.end_update(update)
    assert clock.settle() == len(pattern)
    ends = [u for u in updates[known:] if clock.end_update(u) is not None]
    assert set(ends) == {ord(pattern[-1])} and len(ends) >= 3
    assert clock.regular


def test_an_optimizer_out_of_turn_is_noticed() -> None:
    clock = StepClock()
    for update in turns("a", 4):
        clock.end_update(update)
    clock.settle()
    assert clock.end_update(ord("a")) is not None and clock.regular
    clock.end_update(ord("b"))
    assert not clock.regular


def test_an_irregular_order_has_no_period_and_every_update_ends_a_step() -> None:
    clock = StepClock()
    for update in [1, 2, 1, 1, 2, 2, 1]:
        assert clock.end_update(update) is not None
    assert clock.settle() is None and clock.period is None


def test_samples_are_summed_and_one_unknown_batch_makes_them_unknown() -> None:
    clock = StepClock()
    clock.fetched(3)
    clock.fetched(4)
    step = clock.end_update(1)
    assert step is not None and (step.batches, step.samples) == (2, 7)
    clock.fetched(3)
    clock.fetched(None)
    step = clock.end_update(1)
    assert step is not None and (step.batches, step.samples) == (2, None)
    step = clock.end_update(1)
    assert step is not None and (step.batches, step.samples) == (0, None)


def test_the_forward_of_a_closure_is_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning's step runs forward and backward inside; an update before it stays one."""
    time = Time(monkeypatch)
    clock = StepClock()

    def passes(ns: int) -> None:
        time.now += ns

    def update() -> None:
        clock.open_update()
        passes(3)

    update()
    clock.close()
    update()
    passes(50)  # the closure's forward
    clock.open(BACKWARD)
    passes(100)
    clock.close()
    clock.backward_done()
    passes(7)
    clock.close()
    step = clock.end_update(1)
    assert step is not None
    assert (step.optimizer_ns, step.backward_ns, step.step_ns) == (3 + 7, 100, 163)
