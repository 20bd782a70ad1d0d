"""Loops of every kind, each a script in jobs/loops: what is counted is what the script prints.

A script prints `step N` where a step of N samples begins, and `evaluates` where an evaluation
does; it is ended in its last step.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from running import JOBS
from slices import QUICK, Points, armed, column, net, record_of, rows, train
from torch.utils.data import DataLoader

from aiak_tune.agent.records import SliceRecord, read_seen
from aiak_tune.agent.spec import SlicePlan
from aiak_tune.optimizations.base import Settings
from aiak_tune.selector.breakdown import MICRO, cautions
from aiak_tune.selector.measure import samples_per_step
from aiak_tune.selector.unseen import why_no_step

PLAN = replace(QUICK, parity=2, seed=0)
Run = Callable[..., SliceRecord]


def script(name: str) -> Callable[[], object]:
    def job() -> object:
        torch.manual_seed(0)
        return runpy.run_path(str(JOBS / "loops" / f"{name}.py"), run_name="__main__")

    return job


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a script's slice; steps, samples and evaluations are checked against its own lines."""

    def measured(
        name: str, plan: SlicePlan = PLAN, settings: Settings | None = None, *, samples: bool = True
    ) -> SliceRecord:
        record = record_of(tmp_path, script(name), plan, settings)
        said = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert record.window is not None, record.status
        counted = len(record.window.steps)
        steps: list[tuple[int, bool]] = []
        evaluates = False
        for word, *rest in said:
            if word == "step":
                steps.append((int(rest[0]), evaluates))
                evaluates = False
            evaluates |= word == "evaluates"
        inside = steps[record.warmup_steps :]
        assert len(inside) == counted + record.window.mixed
        assert record.window.mixed == sum(mixed for _, mixed in inside)
        if samples:
            own = [size for size, mixed in inside if not mixed]
            assert samples_per_step(record) == pytest.approx(sum(own) / len(own))
        return record

    return measured


def test_steps_that_the_job_marks(run: Run) -> None:
    record = run("marked")
    assert record.facts["model"]["class"] == "Linear"
    assert "optimizer" not in record.facts
    assert column(record, MICRO) == [1] * 6
    assert len(record.losses) == 2 and record.moved


def test_updates_between_marks_are_no_steps(run: Run) -> None:
    """The job's code calls step_done: 100 updates come before there could be a slice of marks."""
    record = run("rollouts_marked")
    assert column(record, MICRO) == [10] * 6
    assert record.facts["optimizer"] == "Adam"
    assert len(record.losses) == 20


def test_rollouts_are_counted_and_said_to_be_unclear(run: Run) -> None:
    record = run("rollouts", replace(PLAN, steps=12))
    assert record.window is not None
    assert (record.window.rollouts, record.window.mixed) == (4, 0)
    told = [warning for warning in cautions(record.window, None) if warning.code == "rollouts"]
    assert len(told) == 1 and "aiak_tune.step_done" in told[0].text


def test_marks_that_come_too_late_are_said(tmp_path: Path) -> None:
    def job() -> None:
        import aiak_tune  # here: a module that has it and calls step_done is known to mark steps

        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def mark(step: int) -> None:
            if step > 9:
                aiak_tune.step_done()

        train(DataLoader(Points(), batch_size=8), model, optimizer, each=mark)

    record = record_of(tmp_path, job, replace(QUICK, profiled=3))
    assert record.status == "complete" and len(rows(record)) == 6
    assert [code for code, _ in record.warnings] == ["marks_late"]


def test_gradients_without_backward(run: Run) -> None:
    record = run("gradients")
    assert column(record, MICRO) == [1] * 6
    assert len(record.losses) == 2 and None not in record.losses and record.moved


def test_without_an_optimizer_the_reason_is_told(tmp_path: Path) -> None:
    with armed(tmp_path) as agent:
        script("no_optimizer")()
        agent.ended_early()
    assert not [*tmp_path.glob("result-*"), *tmp_path.glob("fault-*")]
    seen = read_seen(tmp_path)
    assert seen == {"forward", "backward"}
    why = why_no_step(seen)
    assert "backward and has no torch.optim optimizer" in why and "aiak_tune.step_done" in why
