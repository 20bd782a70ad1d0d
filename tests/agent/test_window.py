"""The counted window: where it begins and ends, and what does not happen in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import QUICK, Ended, Points, armed, column, net, plain_job, record_of, rows, train
from torch.utils.data import DataLoader

from aiak_tune.agent import facts
from aiak_tune.agent.records import read_results
from aiak_tune.selector.breakdown import BATCHES


@pytest.mark.parametrize(("workers", "prefetch"), [(0, None), (2, 2), (2, 5)])
def test_it_begins_when_queued_batches_are_used_up(
    tmp_path: Path, workers: int, prefetch: int | None
) -> None:
    record = record_of(tmp_path, lambda: plain_job(num_workers=workers, prefetch_factor=prefetch))
    queued = workers * (prefetch or 0)
    assert record.warmup_steps == max(3, queued + 2 if queued else 0)


@pytest.mark.parametrize("steps", [6, 7])
def test_it_holds_whole_turns_of_the_workers(tmp_path: Path, steps: int) -> None:
    record = record_of(tmp_path, lambda: plain_job(num_workers=2), replace(QUICK, steps=steps))
    assert sum(b or 0 for b in column(record, BATCHES)) % 2 == 0
    assert steps <= len(rows(record)) <= steps + 1


def test_it_lasts_as_long_as_asked(tmp_path: Path) -> None:
    record = record_of(tmp_path, plain_job, replace(QUICK, min_window_s=0.2))
    assert record.window is not None and record.window.wall_ns >= 200_000_000
    record = record_of(tmp_path, plain_job, replace(QUICK, steps=400_000, max_window_s=0.1))
    assert record.window is not None and record.window.wall_ns < 400_000_000
    assert record.status == "complete"


def test_a_late_end_of_the_window_still_has_some_steps(tmp_path: Path) -> None:
    record = record_of(tmp_path, plain_job, replace(QUICK, steps=50, max_window_s=0.0))
    assert len(rows(record)) == 3


def test_the_device_is_synchronised_at_both_ends_and_nothing_cloned_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at: list[int] = []
    clones: list[int] = []
    done = [0]
    monkeypatch.setattr(facts, "synchronize", lambda torch: at.append(done[0]))
    plain = torch.Tensor.clone

    def clone(self: torch.Tensor, **more: Any) -> torch.Tensor:
        clones.append(done[0])
        return plain(self, **more)

    monkeypatch.setattr(torch.Tensor, "clone", clone)

    def job() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        train(
            DataLoader(Points(), batch_size=8), model, optimizer,
            each=lambda step: done.__setitem__(0, step),
        )  # fmt: skip

    plan = replace(QUICK, parity=2, seed=0)
    record = record_of(tmp_path, job, plan)
    assert at == [2, 8], "after the third step, and after the ninth"
    assert len(record.losses) == 2 and max(clones) < 3


def test_settings_of_ours_take_no_time_of_a_step(tmp_path: Path) -> None:
    """The profiler's start, for one, lies between the window and the profiled steps."""
    with armed(tmp_path, replace(QUICK, profiled=2)) as run:
        with pytest.raises(Ended):
            plain_job()
        assert run.clock.period == 1
    [record] = read_results(tmp_path)
    assert record.trace == "trace-0.json" and len(record.profiled) == 2
    assert record.window is not None and len(record.window.steps) == 6


def test_progress_is_told_in_lines(tmp_path: Path) -> None:
    import json

    with armed(tmp_path), pytest.raises(Ended):
        plain_job()
    told = [json.loads(line) for line in (tmp_path / "progress-0.jsonl").read_text().splitlines()]
    phases = [line["phase"] for line in told]
    assert phases[:3] == ["warm-up"] * 3 and phases[-2:] == ["counted", "done"]
    assert sum(len(line["steps_ms"]) for line in told) == told[-1]["counted"] == 6
    assert told[-1]["step"] == 9


def test_a_loader_that_comes_after_training_has_begun_is_not_the_training_one(
    tmp_path: Path,
) -> None:
    """An evaluation that forgets no_grad must not change what counts as queued."""

    def job() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        other = DataLoader(Points(16), batch_size=2, num_workers=1, prefetch_factor=9)

        def look(step: int) -> None:
            if step == 2:
                for _ in other:
                    pass

        train(DataLoader(Points(), batch_size=8), model, optimizer, each=look)

    record = record_of(tmp_path, job)
    assert record.warmup_steps == 3
    assert record.facts["loader"]["num_workers"] == 0
