"""Intervals against sets of single nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from aiak_tune.profiles.intervals import EMPTY, Intervals

UNHURRIED = settings(deadline=None)  # the machine is shared
Pairs = list[tuple[int, int]]
PAIRS = st.lists(st.tuples(st.integers(-20, 40), st.integers(-20, 40)), max_size=12)
TIMES = st.integers(-25, 45)


def of(pairs: Pairs) -> Intervals:
    return Intervals.of([a for a, _ in pairs], [b for _, b in pairs])


def instants(pairs: Pairs) -> set[int]:
    return {t for a, b in pairs for t in range(a, b)}


def held(intervals: Intervals) -> set[int]:
    return instants(list(zip(intervals.starts.tolist(), intervals.ends.tolist(), strict=True)))


def assert_sound(intervals: Intervals) -> None:
    assert (intervals.ends > intervals.starts).all()
    assert (intervals.starts[1:] > intervals.ends[:-1]).all()
    assert intervals.starts.dtype == intervals.ends.dtype == np.int64


@UNHURRIED
@given(PAIRS)
def test_events_in_any_order_become_their_union(pairs: Pairs) -> None:
    built = of(pairs)
    assert_sound(built)
    assert held(built) == instants(pairs)
    assert built.total_ns == len(instants(pairs))
    assert built == of(pairs[::-1])


@UNHURRIED
@given(PAIRS, PAIRS)
def test_union_intersection_and_difference_are_those_of_sets(left: Pairs, right: Pairs) -> None:
    a, b = of(left), of(right)
    for got, wanted in (
        (a.union(b), instants(left) | instants(right)),
        (a.intersect(b), instants(left) & instants(right)),
        (a.minus(b), instants(left) - instants(right)),
    ):
        assert_sound(got)
        assert held(got) == wanted


@UNHURRIED
@given(PAIRS, TIMES, TIMES)
def test_clip_and_outside_share_a_window(pairs: Pairs, start: int, end: int) -> None:
    window = set(range(start, end))
    inside, outside = of(pairs).clip(start, end), of(pairs).outside(start, end)
    assert held(inside) == instants(pairs) & window
    assert held(outside) == window - instants(pairs)
    assert_sound(inside)
    assert_sound(outside)


@UNHURRIED
@given(PAIRS, st.integers(0, 20))
def test_longer_than_keeps_whole_intervals(pairs: Pairs, ns: int) -> None:
    built = of(pairs)
    spans = zip(built.starts.tolist(), built.ends.tolist(), strict=True)
    assert held(built.longer_than(ns)) == instants([s for s in spans if s[1] - s[0] > ns])


@UNHURRIED
@given(PAIRS, PAIRS)
def test_touching_keeps_whole_intervals(left: Pairs, right: Pairs) -> None:
    built = of(left)
    spans = zip(built.starts.tolist(), built.ends.tolist(), strict=True)
    wanted = instants([s for s in spans if instants([s]) & instants(right)])
    assert held(built.touching(of(right))) == wanted


def test_touching_events_become_one_interval() -> None:
    assert len(of([(0, 5), (5, 9)])) == 1


def test_overlapping_kernels_of_one_stream_count_once() -> None:
    assert of([(0, 10), (5, 15)]).total_ns == 15


def test_nothing_is_empty() -> None:
    assert Intervals.of([], []) == EMPTY == Intervals.span(3, 3)
    assert EMPTY.total_ns == 0
    assert EMPTY != "nothing"
