"""Waiting for a late rank is told from the transfer, without a common clock."""

from __future__ import annotations

from trace_events import Event, collective, event, operator, step, trace

from aiak_tune.profiles.attribution import attribute
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.trace import Trace
from aiak_tune.profiles.trace_waiting import waiting_of


def gloo(start_us: float, end_us: float) -> Event:
    return event("user_annotation", "gloo:all_reduce", start_us, end_us, thread=9)


def rank(*events: Event, at: float = 0) -> Trace:
    """Two steps of 10 ms; `at` moves the rank's clock."""
    every = [step(0, 0, 10_000), step(1, 10_000, 20_000), operator(100, 200), *events]
    return trace([{**e, "ts": e["ts"] + at} for e in every])


def test_the_last_rank_to_come_waits_for_nobody() -> None:
    early = rank(gloo(1_000, 9_000), gloo(15_000, 16_000))
    late = rank(gloo(8_500, 9_000), gloo(12_000, 16_000), at=5e6)
    found = waiting_of([early, late])
    assert found is not None
    assert [w.total_ns for w in found] == [7_500_000, 3_000_000]
    assert found[0].clip(0, 10_000_000).total_ns == 7_500_000
    split = attribute(early, late=found[0])
    assert split.mean.ns[Category.COMM] == 4_500_000
    assert split.mean.comm_waiting_ns == 3_750_000


def test_waiting_under_an_operator_is_not_exposed() -> None:
    early = rank(gloo(1_000, 9_000), operator(1_000, 4_000))
    found = waiting_of([early, rank(gloo(8_000, 9_000))])
    assert found is not None
    split = attribute(early, steps={0}, late=found[0])
    assert split.mean.comm_waiting_ns == 4_000_000
    assert split.mean.ns[Category.COMM] == 5_000_000


def test_kernels_of_several_collectives_are_matched_one_by_one() -> None:
    one = rank(collective(1_000, 2_000), collective(3_000, 9_000))
    two = rank(collective(1_000, 6_000), collective(7_500, 9_500))
    found = waiting_of([one, two])
    assert found is not None
    assert [w.total_ns for w in found] == [4_000_000, 4_000_000]


def test_ranks_without_the_same_collectives_say_nothing() -> None:
    assert waiting_of([rank(gloo(1_000, 9_000))]) is None
    assert waiting_of([rank(gloo(1_000, 9_000)), rank()]) is None
    two = rank(gloo(1_000, 2_000), gloo(3_000, 4_000))
    assert waiting_of([rank(gloo(1_000, 9_000)), two]) is None


def test_ranks_that_never_meet_wait_for_nobody() -> None:
    found = waiting_of([rank(), rank()])
    assert found is not None
    assert [w.total_ns for w in found] == [0, 0]
    assert attribute(rank(), late=found[0]).mean.comm_waiting_ns == 0
    assert attribute(rank()).mean.comm_waiting_ns is None
