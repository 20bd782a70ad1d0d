"""Compiling is waited for, told, and known for the job's own whatever it compiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import QUICK, Points, net, record_of, rows, train
from torch import nn
from torch.utils.data import DataLoader

from aiak_tune.agent import compiling
from aiak_tune.agent.compiling import LONGEST_WAIT, QUIET_STEPS, Compiling
from aiak_tune.optimizations.catalog import by_name, judge
from aiak_tune.optimizations.examples import PLAIN

ADAM: Any = torch.optim.Adam


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def data() -> DataLoader[Any]:
    return DataLoader(Points(800), batch_size=8)


def compiled_loss(record_at: list[int]) -> None:
    """The sizes that it is called with change until the tenth step."""
    model = net()
    optimizer = ADAM(model.parameters())
    loss = torch.compile(lambda a, b: (a - b).square().mean(), backend="eager", dynamic=False)
    for number, (x, y) in enumerate(data()):
        rows = min(8, 2 + number // 2)
        loss(model(x[:rows]), y[:rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
        record_at.append(torch._dynamo.utils.counters["frames"]["total"])


def test_counting_begins_when_recompiles_have_stopped(tmp_path: Path) -> None:
    frames: list[int] = []
    record = record_of(tmp_path, lambda: compiled_loss(frames))
    last = max(n for n in range(1, len(frames)) if frames[n] > frames[n - 1]) + 1
    assert last == 13, "the seventh size came at the thirteenth step"
    assert record.warmup_steps == last + QUIET_STEPS
    assert len(rows(record)) == 6 and frames[record.warmup_steps :].count(frames[-1])
    (warning,) = record.warnings
    assert warning[0] == "recompiles" and "6 times anew" in warning[1]
    assert record.facts["compiled"] is True, "its loss is"


def test_a_learning_rate_that_changes_at_each_step(tmp_path: Path) -> None:
    """A number in the compiled update, compiled for each of its values until torch gives up."""

    def job() -> None:
        model = net()
        optimizer = ADAM(model.parameters(), lr=1e-3, foreach=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=200)

        @torch.compile(backend="eager")
        def update() -> None:
            optimizer.step()
            scheduler.step()

        for x, y in data():
            nn.functional.mse_loss(model(x), y).backward()
            update()
            optimizer.zero_grad()

    record = record_of(tmp_path, job, replace(QUICK, warmup=2))
    assert record.status == "complete" and record.facts["compiled"]
    assert record.warmup_steps > 2
    assert [code for code, _ in record.warnings] == ["recompiles"]


def test_a_job_that_never_stops_compiling_is_measured_and_said_to_be_unstable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "LONGEST_WAIT", 5)

    def job() -> None:
        model = net()
        optimizer = ADAM(model.parameters())
        for x, y in data():
            fresh: Any = torch.compile(nn.MSELoss(), backend="eager")
            torch._dynamo.reset_code_caches()
            fresh(model(x), y).backward()
            optimizer.step()

    record = record_of(tmp_path, job)
    assert record.status == "complete" and record.warmup_steps == QUICK.warmup + 5
    (warning,) = record.warnings
    assert warning[0] == "not_stable" and "not stable in the slice" in warning[1]


def test_a_job_that_compiles_nothing_waits_for_nothing(tmp_path: Path) -> None:
    def job() -> None:
        train(data(), model := net(), ADAM(model.parameters()), epochs=1)

    record = record_of(tmp_path, job)
    assert record.warmup_steps == QUICK.warmup and not record.warnings
    assert record.facts["compiled"] is False


def test_what_is_compiled_in_the_counted_steps_is_said() -> None:
    counts = Compiling()
    counters = torch._dynamo.utils.counters
    counters["frames"]["total"] = 1
    counts.step()
    assert not counts.settled()
    for _ in range(QUIET_STEPS):
        counts.step()
    assert counts.settled()
    counts.window_opens()
    counters["frames"]["total"] = 3
    counts.window_closed()
    assert counts.warnings()[0][0] == "not_stable" and "2 frames" in counts.warnings()[0][1]
    assert LONGEST_WAIT > QUIET_STEPS


def test_models_that_drew_as_plain_are_waited_for_once_more() -> None:
    counts = Compiling()
    torch._dynamo.utils.counters["frames"]["total"] = 1
    for _ in range(QUIET_STEPS + 1):
        counts.step()
    assert counts.settled()
    counts.draws_change()
    assert not counts.settled()


def test_what_the_job_compiles_is_not_compiled_again() -> None:
    finding = judge(by_name["compile"], replace(PLAIN, job=replace(PLAIN.job, compiled=True)))
    assert not finding.fits and "already" in finding.reason
