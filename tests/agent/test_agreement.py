"""What the ranks agree on, and that all of them hold to it, whoever comes late or never."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore  # type: ignore[attr-defined]

from aiak_tune.agent.agreement import Agreement, Meeting, Proposal, agreed
from aiak_tune.agent.spec import SlicePlan

PLAN = SlicePlan(steps=20, profiled=4, min_window_s=2.0, max_window_s=20.0)
MS = 1e6


def test_the_window_is_as_long_as_the_quickest_rank_needs() -> None:
    found = agreed({0: Proposal(step_ns=50 * MS), 1: Proposal(step_ns=20 * MS)}, PLAN, 2)
    assert found.steps == 100


def test_the_window_ends_in_time_for_the_slowest_rank() -> None:
    found = agreed({0: Proposal(step_ns=1 * MS), 1: Proposal(step_ns=500 * MS)}, PLAN, 2)
    assert found.steps == 40
    assert agreed({0: Proposal(step_ns=60e9)}, PLAN, 1).steps == 3


def test_every_ranks_queue_is_used_up_and_its_workers_take_whole_turns() -> None:
    mine = Proposal(step_ns=90 * MS, warm_up=3, turn=3)
    found = agreed({0: mine, 1: Proposal(step_ns=90 * MS, warm_up=9, turn=2)}, PLAN, 2)
    assert (found.warm_up, found.steps) == (9, 24)
    no_turn = agreed({0: replace(mine, turn=61), 1: replace(mine, turn=59)}, PLAN, 2)
    assert no_turn.steps == 23


def test_without_a_word_of_anybody_the_plans_own_numbers_hold() -> None:
    assert agreed({}, PLAN, 2) == Agreement(warm_up=0, steps=20, profiled=5, places=(None, None))
    assert agreed({}, replace(PLAN, profiled=0), 2).profiled == 0


def test_while_one_rank_is_not_settled_they_meet_again() -> None:
    told = {0: Proposal(step_ns=MS), 1: Proposal(step_ns=MS, settled=False)}
    assert agreed(told, PLAN, 2).again
    assert not agreed({0: told[0]}, PLAN, 1).again


def test_who_did_not_come_is_known() -> None:
    found = agreed({0: Proposal(step_ns=MS, place="a"), 2: Proposal(step_ns=MS)}, PLAN, 3)
    assert (found.places, found.missing) == (("a", None, ""), (1,))


proposals = st.builds(
    Proposal,
    step_ns=st.floats(0, 1e12),
    warm_up=st.integers(0, 500),
    turn=st.integers(1, 64),
)


@given(told=st.dictionaries(st.integers(0, 7), proposals))
def test_any_proposals_give_a_window(told: dict[int, Proposal]) -> None:
    found = agreed(told, PLAN, 8)
    assert found.steps >= 3
    slowest = max((p.step_ns for p in told.values()), default=0)
    assert found.steps <= max(3, 20, 20e9 / max(1, slowest)) + 64
    assert all(found.warm_up >= p.warm_up for p in told.values())


class Ranks:
    """Meetings in threads, on one store."""

    def __init__(self, count: int, *, wait_s: float = 30.0) -> None:
        self.store, self.count, self.wait_s = HashStore(), count, wait_s
        self.answers: dict[int, Agreement] = {}
        self._threads: list[threading.Thread] = []

    def meet(self, rank: int, *, what: str = "first", after_s: float = 0.0, **more: Any) -> None:
        mine = Proposal(**{"step_ns": 10 * MS, "place": f"folder {rank}", **more})

        def run() -> None:
            time.sleep(after_s)
            wait_s = self.wait_s
            meeting = Meeting(self.store, rank, self.count, wait_s=wait_s, patience_s=wait_s)
            self.answers[rank] = meeting.agree(what, mine, PLAN)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def join(self) -> set[Agreement]:
        for thread in self._threads:
            thread.join()
        return set(self.answers.values())


def test_all_ranks_get_one_answer_out_of_what_all_of_them_need() -> None:
    ranks = Ranks(3)
    for rank in range(3):
        ranks.meet(rank, warm_up=10 * rank, after_s=0.05 * (2 - rank))
    (found,) = ranks.join()
    assert len(ranks.answers) == 3
    assert found.warm_up == 20
    assert found.places == ("folder 0", "folder 1", "folder 2")


def test_a_second_meeting_does_not_get_the_answer_of_the_first() -> None:
    ranks = Ranks(2)
    for what, steps in (("first", 200), ("second", 100)):
        for rank in range(2):
            ranks.meet(rank, what=what, step_ns=2e9 / steps)
        (found,) = ranks.join()
        assert found.steps == steps


def test_a_rank_that_comes_late_takes_what_the_others_decided() -> None:
    ranks = Ranks(3, wait_s=0.2)
    for rank in range(2):
        ranks.meet(rank)
    ranks.meet(2, after_s=0.6, warm_up=50)
    (found,) = ranks.join()
    assert found.missing == (2,)
    assert len(ranks.answers) == 3


def test_without_rank_0_the_others_decide_once_and_rank_0_takes_it() -> None:
    ranks = Ranks(3, wait_s=0.1)
    for rank in (1, 2):
        ranks.meet(rank)
    ranks.meet(0, after_s=0.8, warm_up=50)
    (found,) = ranks.join()
    assert found.steps == PLAN.steps
    assert len(ranks.answers) == 3


@pytest.mark.parametrize("store", [None, object()])
def test_without_a_store_the_plans_own_numbers_hold_and_it_is_said(store: object) -> None:
    found = Meeting(store, 1, 2).agree("first", Proposal(step_ns=MS), PLAN)
    assert (found.steps, found.warm_up, found.profiled) == (PLAN.steps, 0, 5)
    assert found.alone is not None
    assert "the ranks could not meet: AttributeError" in found.alone
    Meeting(store, 1, 2).end([0, 1])  # raises nothing, and waits for nobody


def test_the_end_waits_for_the_ranks_that_train() -> None:
    store, ended = HashStore(), []

    def end(rank: int, expected: list[int]) -> None:
        Meeting(store, rank, 3).end(expected)
        ended.append(rank)

    first = threading.Thread(target=end, args=(0, [0, 2]))
    first.start()
    time.sleep(0.1)
    assert ended == []
    end(2, [0, 2])
    first.join(5)
    assert sorted(ended) == [0, 2]
