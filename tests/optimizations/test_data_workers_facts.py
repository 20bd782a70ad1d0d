"""`data-workers` judged by facts alone: how many workers, and what they could gain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aiak_tune.optimizations.catalog import by_name, judge
from aiak_tune.optimizations.data_workers import step_at_best
from aiak_tune.optimizations.examples import LOADER, PLAIN, fed_by
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import Environment, WorkloadProfile

ENTRY = by_name["data-workers"]


def on_cpu(cores: int, data: float, rest: float, **detail: float) -> WorkloadProfile:
    model = PLAIN.job.model
    assert model is not None
    breakdown = {c: 0.0 for c in Category} | {Category.DATA_WAIT: data, Category.COMPUTE: rest}
    step = replace(PLAIN.steps.step_ms, mean=data + rest)
    return replace(
        fed_by(LOADER),
        job=replace(PLAIN.job, model=replace(model, devices=("cpu",)), loader=LOADER),
        environment=Environment(cores=cores),
        breakdown_ms=breakdown,
        steps=replace(PLAIN.steps, step_ms=step),
        detail_ms=replace(PLAIN.detail_ms, **{"data_io": 0.0, "data_cpu": data} | detail),
    )


def test_as_many_workers_as_hide_the_data_come_first() -> None:
    finding = judge(ENTRY, PLAIN)
    assert finding.space["num_workers"][0] == 2  # 31 ms of data beside 30 ms of other time
    assert finding.space["pin_memory"] == (True,)
    assert finding.bound == pytest.approx(61.0 / 28.9)


@pytest.mark.parametrize(("data", "first"), [(50.0, 1), (90.0, 2)])
def test_two_cores_without_a_gpu(data: float, first: int) -> None:
    finding = judge(ENTRY, on_cpu(2, data, 100.0 - data))
    assert finding.space["num_workers"] == ((1, 2) if first == 1 else (2, 1))
    assert finding.space["pin_memory"] == (False,)
    # Two cores have at least 100 ms of work to share: a step of 50 ms.
    assert finding.bound == pytest.approx(2.0)


def test_one_core_cannot_gain_from_workers_that_compute() -> None:
    assert not judge(ENTRY, on_cpu(1, 50.0, 50.0)).fits
    assert judge(ENTRY, on_cpu(1, 50.0, 50.0, data_io=45.0, data_cpu=5.0)).fits


def test_workers_that_wait_for_storage_may_outnumber_the_cores() -> None:
    slow = on_cpu(2, 90.0, 10.0, data_io=85.0, data_cpu=5.0)
    assert judge(ENTRY, slow).space["num_workers"][0] == 8


def test_a_bound_is_never_below_what_a_step_can_reach() -> None:
    profile = on_cpu(16, 80.0, 20.0)
    assert [step_at_best(profile, LOADER, w) for w in (1, 2, 4, 8)] == [80, 40, 20, 20]


def test_shared_memory_limits_workers_and_names_itself() -> None:
    tight = fed_by(replace(LOADER, batch_bytes=2**24), 2**26)
    assert judge(ENTRY, tight).space["num_workers"] == (1,)
    full = fed_by(replace(LOADER, batch_bytes=2**26), 2**26)
    assert not judge(ENTRY, full).fits and "/dev/shm" in judge(ENTRY, full).reason


def test_ranks_of_a_node_share_cores_and_memory() -> None:
    node = replace(PLAIN.environment, ranks_per_node=8)
    assert set(judge(ENTRY, replace(PLAIN, environment=node)).space["num_workers"]) == {1, 2}


def test_batches_on_the_device_are_not_pinned() -> None:
    finding = judge(ENTRY, fed_by(replace(LOADER, on_device=True)))
    assert finding.space["pin_memory"] == (False,)


def test_enough_workers_are_enough() -> None:
    fed = replace(LOADER, num_workers=4, prefetch_factor=2, pin_memory=True)
    calm = dict(PLAIN.breakdown_ms or {}) | {Category.DATA_WAIT: 0.0}
    finding = judge(ENTRY, replace(fed_by(fed), breakdown_ms=calm))
    assert not finding.fits and "0.0% of the step waits" in finding.reason


def test_long_epochs_do_not_ask_for_persistent_workers() -> None:
    for batches, values in ((10**6, (False,)), (10, (True, False)), (None, (False, True))):
        finding = judge(ENTRY, fed_by(replace(LOADER, batches_per_epoch=batches)))
        assert finding.space["persistent_workers"] == values
    spawned = replace(LOADER, start_method="spawn")
    assert not judge(ENTRY, fed_by(spawned)).fits
    assert not judge(ENTRY, fed_by(replace(LOADER, map_style=False))).fits
