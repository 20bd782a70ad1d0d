"""The profiled steps, beside a job that profiles itself and one that evaluates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import QUICK, Ended, Points, armed, net, plain_job, record_of, train
from torch.utils.data import DataLoader

from aiak_tune.agent.records import read_results
from aiak_tune.profiles.attribution import attribute
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.trace import read_trace

PLAN = replace(QUICK, profiled=3)


def with_each(each: Callable[[int], None], steps: int = 10**9) -> None:
    model = net()
    loader = DataLoader(Points(), batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def stop(step: int) -> None:
        each(step)
        if step == steps:
            raise StopIteration

    try:
        train(loader, model, optimizer, each=stop)
    except StopIteration:
        return


def test_profiled_steps_are_whole_and_have_their_fetch(tmp_path: Path) -> None:
    with armed(tmp_path, PLAN), pytest.raises(Ended):
        plain_job()
    [record] = read_results(tmp_path)
    assert record.profiled == [0, 1, 2] and record.warnings == []
    found = attribute(read_trace(tmp_path / str(record.trace)), steps=record.profiled)
    assert [s.number for s in found.steps] == [0, 1, 2]
    for step in found.steps:
        assert sum(step.ns.values()) == step.step_ns
        assert step.ns[Category.DATA_WAIT] > 0 and step.ns[Category.COMPUTE] > 0


def test_an_evaluation_inside_a_profiled_step_leaves_the_step_out(tmp_path: Path) -> None:
    """Nine steps of warm-up and window, one without a mark, then the profiled ones."""
    model = net()

    def evaluate(step: int) -> None:
        if step == 11:
            with torch.no_grad():
                for x, _ in DataLoader(Points(16), batch_size=8):
                    model(x)

    record = record_of(tmp_path, lambda: with_each(evaluate), PLAN)
    assert record.profiled == [0, 2, 3]


def test_evaluations_in_all_profiled_steps_end_it(tmp_path: Path) -> None:
    def evaluate(step: int) -> None:
        if step > 9:
            with torch.no_grad():
                for _ in DataLoader(Points(16), batch_size=8):
                    pass

    record = record_of(tmp_path, lambda: with_each(evaluate), PLAN)
    assert record.status == "complete" and record.profiled == [] and record.trace is None


def own(kind: str) -> Any:
    if kind == "legacy":
        return torch.autograd.profiler.profile()
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


def matmuls(profiler: Any) -> int:
    return sum(e.count for e in profiler.key_averages() if e.key == "aten::addmm")


@pytest.mark.parametrize("kind", ["kineto", "legacy"])
@pytest.mark.parametrize("begins", [0, 4, 11])
def test_a_job_that_profiles_itself_keeps_its_result(
    tmp_path: Path, kind: str, begins: int
) -> None:
    """Before our steps, across their start, and in the middle of them."""
    profiler = []

    def profile(step: int) -> None:
        if step == begins + 1:
            profiler.append(own(kind))
            profiler[0].__enter__()
        if step == begins + 3:
            profiler[0].__exit__(None, None, None)

    if begins == 4:
        plan = replace(PLAN, steps=2)  # the window ends at step 5, in the job's own profile
    else:
        plan = PLAN
    record = record_of(tmp_path, lambda: with_each(profile, steps=15), plan)
    assert record.profiled == [] and record.trace is None
    assert [w[0] for w in record.warnings] == ["own_profiler"]
    assert record.window is not None and record.window.steps
    if len(profiler) and begins == 11:
        assert record.status == "complete"


@pytest.mark.parametrize("kind", ["kineto", "legacy"])
def test_the_jobs_profile_holds_its_own_steps(tmp_path: Path, kind: str) -> None:
    seen: list[int] = []
    profiler: list[Any] = []

    def profile(step: int) -> None:
        if step == 11:
            profiler.append(own(kind))
            profiler[0].__enter__()

    with armed(tmp_path, replace(PLAN, profiled=2, probe=True)) as run:
        run._finish = lambda status: None  # type: ignore[method-assign]

        def stop(step: int) -> None:
            profile(step)
            if step == 14:
                profiler[0].__exit__(None, None, None)
                seen.append(matmuls(profiler[0]))

        with_each(stop, steps=16)
    assert seen == [6], "three steps of two layers"


@pytest.mark.parametrize("error", [None, RuntimeError, OSError])
def test_a_full_disk_costs_the_breakdown_alone(
    tmp_path: Path, error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kineto itself says nothing when it cannot write."""

    def export(self: Any, path: str) -> None:
        if error is not None:
            raise error("no space left on device")

    monkeypatch.setattr(torch.profiler.profiler._KinetoProfile, "export_chrome_trace", export)
    with armed(tmp_path, PLAN), pytest.raises(Ended):
        plain_job()
    [record] = read_results(tmp_path)
    assert record.trace is None and record.warnings[0][0] == "trace_unwritten"
    assert record.status == "complete"
