"""The breakdown of the clean step from clean and profiled steps."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiak_tune.agent.records import WindowRecord
from aiak_tune.profiles.attribution import Attribution, StepBreakdown, mean_of
from aiak_tune.profiles.category import Category
from aiak_tune.selector.breakdown import cautions, combine, step_statistics

MS = 1_000_000
NS = st.integers(0, 10**10)


def window(*steps: tuple[int, int], mixed: int = 0) -> WindowRecord:
    """Clean steps of (step, fetch) nanoseconds."""
    rows: list[list[int | None]] = [[step, fetch, 1, 1, 8] for step, fetch in steps]
    return WindowRecord(wall_ns=sum(s for s, _ in steps), steps=rows, mixed=mixed)


def profiled(device: str, *steps: Mapping[Category, int], overlapped: int = 0) -> Attribution:
    """Profiled steps by their categories."""
    made = tuple(
        StepBreakdown(
            number=number,
            step_ns=sum(ns.values()),
            ns={c: ns.get(c, 0) for c in Category},
            h2d_overlapped_ns=2 * MS,
            comm_overlapped_ns=0,
            gap_sync_ns=None,
            fetch_ns=ns.get(Category.DATA_WAIT, 0) + overlapped,
            fetch_overlapped_ns=overlapped,
            matmul_ns=ns.get(Category.COMPUTE, 0) // 2,
            convolution_ns=ns.get(Category.COMPUTE, 0) // 5,
        )
        for number, ns in enumerate(steps)
    )
    return Attribution(
        device=device, rank=0, world_size=1, steps=made, mean=mean_of(made), top=(), warnings=()
    )


PARTS = st.fixed_dictionaries({c: NS for c in Category}).filter(lambda p: sum(p.values()) > 0)


@st.composite
def windows(draw: st.DrawFn) -> WindowRecord:
    steps = draw(st.lists(st.tuples(st.integers(1, 10**10), st.floats(0, 1)), min_size=1))
    return window(*((step, int(step * share)) for step, share in steps))


@given(clean=windows(), parts=st.lists(PARTS, min_size=1, max_size=4), overlapped=NS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_categories_sum_to_the_mean_clean_step(
    device: str, clean: WindowRecord, parts: list[Mapping[Category, int]], overlapped: int
) -> None:
    found = combine(clean, profiled(device, *parts, overlapped=overlapped))
    total = math.fsum(found.breakdown_ms.values())
    assert total == pytest.approx(step_statistics(clean).mean, rel=1e-9)
    assert set(found.breakdown_ms) == set(Category)
    assert min(found.breakdown_ms.values()) >= 0
    assert found.matmul_share is not None and 0 <= found.matmul_share <= 1


def test_on_a_gpu_device_times_stay_unscaled_and_the_gap_is_the_remainder() -> None:
    parts = {
        Category.COMPUTE: 5 * MS, Category.COMM: 1 * MS, Category.H2D: 2 * MS,
        Category.DATA_WAIT: 7 * MS, Category.GAP: 9 * MS, Category.HOST: MS // 2,
    }  # fmt: skip
    found = combine(
        window((20 * MS, 6 * MS), (24 * MS, 8 * MS)), profiled("cuda", parts, overlapped=3 * MS)
    )
    assert found.breakdown_ms == pytest.approx(
        {
            Category.COMPUTE: 5.0, Category.COMM: 1.0, Category.H2D: 2.0,
            Category.DATA_WAIT: 4.0,  # the clean 7 ms, less what the device did under it
            Category.HOST: 0.5, Category.GAP: 9.5,
        }
    )  # fmt: skip
    assert found.inflation == pytest.approx(24.5 / 22)
    assert found.detail_ms.h2d_overlapped == 2.0 and found.detail_ms.gap_sync is None


def test_on_a_cpu_the_rest_is_shared_as_profiled() -> None:
    parts = {Category.COMPUTE: 30 * MS, Category.GAP: 10 * MS, Category.DATA_WAIT: 4 * MS}
    found = combine(window((24 * MS, 4 * MS)), profiled("cpu", parts))
    assert found.breakdown_ms[Category.DATA_WAIT] == pytest.approx(4)
    assert found.breakdown_ms[Category.COMPUTE] == pytest.approx(15)
    assert found.breakdown_ms[Category.GAP] == pytest.approx(5)
    assert found.matmul_share == pytest.approx(7.5 / 24)
    assert found.convolution_share == pytest.approx(3 / 24)


def test_profiled_times_longer_than_the_clean_step_leave_no_gap_and_keep_compute() -> None:
    parts = {Category.COMPUTE: 10 * MS, Category.HOST: 3 * MS, Category.GAP: MS}
    found = combine(window((12 * MS, 1 * MS)), profiled("cuda", parts))
    assert found.breakdown_ms == pytest.approx(
        {c: 0.0 for c in Category}
        | {Category.COMPUTE: 10.0, Category.DATA_WAIT: 1.0, Category.HOST: 1.0}
    )
    found = combine(window((8 * MS, 1 * MS)), profiled("cuda", parts))
    assert found.breakdown_ms[Category.COMPUTE] == pytest.approx(8)


def test_a_wait_for_all_of_the_step_is_kept_on_a_cpu() -> None:
    found = combine(window((10 * MS, 10 * MS)), profiled("cpu", {Category.COMPUTE: 3 * MS}))
    assert found.breakdown_ms[Category.DATA_WAIT] == pytest.approx(10)


def codes(record: WindowRecord, inflated: bool = False) -> list[str]:
    longer = {Category.COMPUTE: 20 * MS if inflated else 10 * MS}
    found = combine(record, profiled("cuda", longer))
    return [w.code for w in cautions(record, found)]


def test_what_a_reader_must_know_is_said() -> None:
    even = window(*[(10 * MS, 2 * MS)] * 8)
    assert codes(even) == []
    assert codes(even, inflated=True) == ["profiler_inflation"]
    assert codes(window(*[(10 * MS, MS)] * 9, (40 * MS, MS))) == ["uneven_steps"]
    assert codes(window(*[(10 * MS, MS)] * 9, (40 * MS, 31 * MS))) == [], "a wait is seen"
    assert codes(window((10 * MS, 0), mixed=3)) == ["evaluation_left_out"]
