"""Figures from what ranks left behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from aiak_tune.agent.records import SliceRecord, WindowRecord
from aiak_tune.agent.spec import RunSpec, SlicePlan
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import JobFacts
from aiak_tune.selector.launch import launch
from aiak_tune.selector.measure import profile_of, samples_per_step, throughput
from aiak_tune.selector.ranks import views_of

MS = 1_000_000
BASE = JobFacts(fingerprint="job1:any", command=("python", "train.py"), name="train.py")
PLAN = SlicePlan()


def record(
    rank: int = 0, ms: int = 10, rows: list[list[int | None]] | None = None, **more: Any
) -> SliceRecord:
    rows = rows or [[ms * MS, 0, 1, 1, 32]] * 10
    window = WindowRecord(wall_ns=sum(r[0] or 0 for r in rows), steps=rows, mixed=0)
    given: dict[str, Any] = {
        "pid": 1, "status": "complete", "facts": {}, "environment": {}, "warmup_steps": 3,
    }  # fmt: skip
    return SliceRecord(rank=rank, world_size=2, window=window, **given | more)


def test_all_samples_over_the_slowest_ranks_wall() -> None:
    ranks = [record(0, 10), record(1, 20)]
    assert throughput(ranks) == pytest.approx(640 / 0.2)
    assert throughput(ranks[:1]) == pytest.approx(320 / 0.1)


def test_steps_without_a_batch_count_no_samples() -> None:
    """Who fetches one ahead has such a step at the end of each epoch."""
    ahead: list[list[int | None]] = [[MS, 0, 2, 1, 64], [MS, 0, 0, 1, None]]
    assert samples_per_step(record(rows=ahead * 5)) == 32


def test_an_epochs_end_at_the_windows_edge_takes_no_samples_away() -> None:
    plain: list[list[int | None]] = [[MS, 0, 1, 1, 32]] * 8
    none: list[int | None] = [MS, 0, 0, 1, None]
    two: list[int | None] = [MS, 0, 2, 1, 64]
    for rows in ([*plain, none], [none, *plain], [two, *plain], [*plain, none, two, *plain, none]):
        assert samples_per_step(record(rows=rows)) == 32
    every_other: list[list[int | None]] = [[MS, 0, 1, 1, 32], none]
    assert samples_per_step(record(rows=every_other * 5)) == 16
    four: list[list[int | None]] = [[MS, 0, 4, 4, 128]] * 8
    assert samples_per_step(record(rows=[[MS, 0, 3, 4, 96], *four])) == 128


def unknown(rank: int, **facts: Any) -> SliceRecord:
    return record(rank, rows=[[10 * MS, 0, 1, 2, None]] * 10, facts=facts)


def test_uncounted_samples_come_from_the_batchs_shape() -> None:
    assert samples_per_step(unknown(0, batch_shapes=[[8, 3]])) == 16
    assert samples_per_step(unknown(0, batch_shapes=[[]])) is None


def test_unknown_samples_are_steps_a_second_with_a_warning(tmp_path: Path) -> None:
    ranks = [unknown(0), unknown(1)]
    assert throughput(ranks) == pytest.approx(100), "a step is one of all ranks"
    assert throughput([record(0), unknown(1)]) == pytest.approx(100)
    profile = profile_of(ranks, tmp_path, BASE, PLAN)
    assert profile.steps.samples_per_s is None and profile.steps.samples_per_step is None
    codes = [w.code for w in profile.warnings]
    assert "samples_unknown" in codes and "no_loader" in codes


def test_the_slowest_rank_makes_the_profile(tmp_path: Path) -> None:
    profile = profile_of([record(0, 10), record(1, 20)], tmp_path, BASE, PLAN)
    assert profile.steps.step_ms.mean == 20 and profile.steps.samples_per_step == 64
    assert [r.step_ms for r in profile.ranks] == [10, 20]
    assert "no_profiled_steps" in [w.code for w in profile.warnings]


def test_a_missing_breakdown_always_has_its_reason(tmp_path: Path) -> None:
    def codes(**more: Any) -> list[str]:
        (view,) = views_of([record(**more)], tmp_path)
        assert view.found is None
        return [w.code for w in view.warnings]

    assert codes(warnings=[["amp", "could not be applied"]]) == ["amp", "no_profiled_steps"]
    assert codes(warnings=[["own_profiler", "its own"]]) == ["own_profiler"]
    (tmp_path / "trace-0.json").write_text("{")
    assert codes(trace="trace-0.json", profiled=[0]) == ["trace_unreadable"]


def test_ranks_that_ran_on_other_nodes_are_flagged(tmp_path: Path) -> None:
    def codes(*ranks: SliceRecord) -> list[str]:
        return [w.code for w in profile_of(ranks, tmp_path, BASE, PLAN).warnings]

    assert "ranks_elsewhere" in codes(record(0))
    assert "ranks_elsewhere" not in codes(record(0), record(1))


def test_few_steps_are_flagged(tmp_path: Path) -> None:
    few = record(rows=[[10 * MS, 0, 1, 1, 32]] * 4)
    assert "too_few_steps" in [w.code for w in profile_of([few], tmp_path, BASE, PLAN).warnings]


JOB = """
import json, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, i):
        x = torch.rand(48, 96)
        for _ in range(4): x = torch.sort(x, dim=1)[0].flip(1)
        return x.flatten()

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(48 * 96, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
batches = iter(DataLoader(Images(), batch_size=8))
truth = open(sys.argv[1], "w")
end = time.perf_counter_ns()
while True:
    start = time.perf_counter_ns()
    x = next(batches)
    fetch = time.perf_counter_ns() - start
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    now = time.perf_counter_ns()
    print(json.dumps([now - end, fetch]), file=truth, flush=True)
    end = now
"""


def test_the_wait_for_data_is_the_jobs_own_clocks(tmp_path: Path) -> None:
    """One real start; the job times each fetch by itself."""
    script, truth, run_dir = tmp_path / "train.py", tmp_path / "truth", tmp_path / "run"
    script.write_text(JOB)
    run_dir.mkdir()
    plan = SlicePlan(parity=0, warmup=5, steps=40, profiled=3, min_window_s=0.5)
    spec = RunSpec(run_dir=str(run_dir), slice=plan)
    outcome = launch([sys.executable, str(script), str(truth)], spec)
    assert not outcome.faults and len(outcome.results) == 1, outcome.tail
    profile = profile_of(outcome.results, run_dir, BASE, plan)
    told = outcome.results[0].window
    assert told is not None and len(told.steps) == profile.steps.counted
    rows = [json.loads(line) for line in truth.read_text().splitlines()[5 : 5 + len(told.steps)]]
    # Step by step, and by the median: who is preempted between the two readings of the clock shows
    # milliseconds that the other does not have, and a mean keeps them.
    step_ms = median(step for step, _ in rows) / MS
    apart = [
        (ours[0] - step, ours[1] - fetch)
        for ours, (step, fetch) in zip(told.steps, rows, strict=True)
    ]
    assert abs(median(step for step, _ in apart)) / MS < 0.02 * step_ms
    assert abs(median(fetch for _, fetch in apart)) / MS < 0.02 * step_ms
    assert median(fetch for _, fetch in rows) / MS > 0.2 * step_ms, "a wait worth measuring"
    assert profile.steps.samples_per_step == 8
    assert profile.breakdown_ms is not None
    waited_ms = sum(row[1] or 0 for row in told.steps) / len(told.steps) / MS
    assert profile.breakdown_ms[Category.DATA_WAIT] == pytest.approx(waited_ms)
    assert sum(profile.breakdown_ms.values()) == pytest.approx(profile.steps.step_ms.mean)
    assert profile.breakdown_ms[Category.COMPUTE] > 0
