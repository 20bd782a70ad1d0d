"""Ranks side by side: the same steps in all, the rank that holds the others up, what is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aiak_tune.agent.records import SliceRecord, WindowRecord
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import DetailMs, Warn
from aiak_tune.selector.breakdown import RankBreakdown
from aiak_tune.selector.measure import throughput
from aiak_tune.selector.ranks import RankView, aligned, slowest_view, warnings_of, window_of

MS = 1_000_000


def record(rank: int, steps_ms: list[int], left_out: list[int], **more: Any) -> SliceRecord:
    rows: list[list[int | None]] = [[ms * MS, 0, 1, 1, 32] for ms in steps_ms]
    window = WindowRecord(
        wall_ns=sum(steps_ms) * MS, steps=rows, mixed=len(left_out), left_out=left_out
    )
    return SliceRecord(
        rank=rank, world_size=2, pid=1, status="complete", facts={}, environment={},
        warmup_steps=3, window=window, **more,
    )  # fmt: skip


def view(rank: int, step_ms: int, waiting_ms: float | None, *warnings: Warn) -> RankView:
    detail = replace(DetailMs(), comm_waiting=waiting_ms)
    found = RankBreakdown(
        breakdown_ms={Category.COMPUTE: step_ms}, detail_ms=detail, inflation=1,
        matmul_share=None, convolution_share=None,
    )  # fmt: skip
    return RankView(record=record(rank, [step_ms], []), found=found, warnings=warnings)


def test_steps_with_an_evaluation_in_one_rank_are_waits_in_the_others() -> None:
    # Rank 0 evaluates in its third step; rank 1 waits for it there.
    ranks = [record(0, [10, 10, 10], [2]), record(1, [10, 10, 90, 10], [])]
    assert throughput(ranks) < 2400
    same = aligned(ranks)
    assert [window_of(r).wall_ns for r in same] == [30 * MS, 30 * MS]
    assert [len(window_of(r).steps) for r in same] == [3, 3]
    assert throughput(same) == pytest.approx(64 / 0.010)
    assert aligned(same) == same


def test_ranks_that_counted_other_steps_stay_as_they_are() -> None:
    ranks = (record(0, [10, 10, 10], [2]), record(1, [10, 10, 10], []))
    assert aligned(ranks) == ranks
    alone = (record(0, [10], [1]),)
    assert aligned(alone) == alone


def test_the_rank_that_the_others_wait_for_is_the_slowest() -> None:
    views = [view(0, 30, 20.0), view(1, 29, 0.5)]
    assert slowest_view(views).record.rank == 1
    assert slowest_view([view(0, 30, None), view(1, 29, None)]).record.rank == 0
    blind = replace(view(0, 90, None), found=None)
    assert slowest_view([blind, view(1, 29, None)]).record.rank == 1
    assert slowest_view([blind]).record.rank == 0


def test_what_only_another_rank_has_to_say_is_said_with_its_name() -> None:
    even = Warn(code="uneven_steps", text="few steps are long")
    own = Warn(code="own_profiler", text="the job profiles itself")
    views = [view(0, 10, 0.0, even, own), view(1, 20, 0.0, even)]
    told = warnings_of(views, views[1])
    assert told == [even, Warn(code="own_profiler", text="rank 0: the job profiles itself")]
