"""Jobs of several ranks on one machine: they end together, and are shown apart."""

from __future__ import annotations

import re
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from running import JOBS, QUICK, start

from aiak_tune.optimizations.base import Numerics
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import JobFacts
from aiak_tune.selector.diagnosis import diagnose
from aiak_tune.selector.launch import SLICE_OVER, Limits, Outcome
from aiak_tune.selector.measure import profile_of
from aiak_tune.selector.results import Plan, PlanJob
from aiak_tune.selector.run_plan import here, run_plan

AMP = {"dtype": "bfloat16"}
JOB = JobFacts(fingerprint="job1:any", command=("python", "ranks.py"), name="ranks.py")
QUICK_PROFILED = replace(QUICK, profiled=2)
RANKS = str(JOBS / "ranks.py")
# What torchrun sets, without its own start of several seconds.
TWO = """
for rank in 0 1; do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \\
    OMP_NUM_THREADS=1 {} &
done
wait
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def two(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """The command that starts both ranks of the job."""
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    return ["bash", "-c", TWO.format(" ".join([sys.executable, RANKS, *words]))]


def last_steps(outcome: Outcome) -> set[int]:
    """The last step that each rank ended, by its own word."""
    found = re.findall(r"rank (\d) ended step (\d+)\.", outcome.tail)
    assert {rank for rank, _ in found} == {"0", "1"}
    return {max(int(step) for who, step in found if who == rank) for rank in "01"}


def test_ranks_that_need_different_windows_end_at_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rank 1 has a loader's queue to use up, rank 0 has a profiler of its own.
    command = two(monkeypatch, "--uneven", "--workers", "2")
    outcome = start(command, tmp_path / "run", plan=QUICK_PROFILED)
    assert diagnose(outcome) is None
    assert outcome.stopped == SLICE_OVER
    assert len(last_steps(outcome)) == 1
    first, second = outcome.results
    assert [r.rank for r in outcome.results] == [0, 1]
    assert {r.world_size for r in outcome.results} == {r.here for r in outcome.results} == {2}
    assert [w[0] for w in first.warnings] == ["own_profiler"]
    assert (first.profiled, second.profiled) == ([], [0, 1])
    assert first.window is not None
    assert second.window is not None
    counted = [len(w.steps) + w.mixed for w in (first.window, second.window)]
    assert counted[0] == counted[1] >= QUICK.steps


@pytest.mark.slow
@pytest.mark.parametrize("told_by", ["variables", "argument"])
def test_ranks_of_spawn_are_known_apart(
    told_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = ["--spawn", str(free_port()), "--told-by", told_by]
    outcome = start([sys.executable, RANKS, *words], tmp_path / "run")
    assert diagnose(outcome) is None
    assert [(r.rank, r.world_size, r.here) for r in outcome.results] == [(0, 2, 2), (1, 2, 2)]
    assert len(last_steps(outcome)) == 1


def test_under_torchrun_the_late_rank_is_named_and_the_model_inside_ddp_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", RANKS]
    words += ["--slow-rank", "1", "--slow-s", "0.04"]
    plan = replace(QUICK_PROFILED, steps=20, probe=True)
    run_dir = tmp_path / "run"
    outcome = start([sys.executable, *words], run_dir, plan=plan, settings={"amp": AMP})
    assert diagnose(outcome) is None
    assert len(last_steps(outcome)) == 1
    for record in outcome.results:
        assert "forward" in (record.effects["amp"] or ""), record.effects
        (probe,) = record.probes
        assert probe.problem is None
        assert 0 < (probe.error or 0.0) <= 2 * (probe.yard or 0.0)
    profile = profile_of(outcome.results, run_dir, JOB, plan)
    assert profile.job.ddp
    assert profile.job.model is not None
    assert profile.job.model.cls == "Net"
    assert (profile.environment.nodes, profile.environment.ranks_per_node) == (1, 2)
    assert profile.steps.samples_per_step == 64
    assert profile.slowest_rank == 1
    early, late = profile.ranks
    assert (early.comm_waiting_ms or 0.0) > 0.5 * early.step_ms > (late.comm_waiting_ms or 0.0)
    for rank in profile.ranks:
        parts = rank.breakdown_ms or {}
        assert sum(parts.values()) == pytest.approx(rank.step_ms)
        assert 0 < parts[Category.COMPUTE] and parts[Category.COMM] < 0.98 * rank.step_ms


def test_the_rank_that_fails_first_is_named_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = two(monkeypatch, "--fail-rank", "1", "--fail-step", "3")
    problem = diagnose(start(command, tmp_path / "run"))
    assert problem is not None
    assert (problem.code, problem.text) == (
        "crash", "rank 1 failed first: ValueError: rank 1 cannot go on",
    )  # fmt: skip
    assert problem.tail.startswith("Traceback")
    assert problem.tail.endswith("ValueError: rank 1 cannot go on")


@pytest.mark.slow
def test_ddp_that_must_find_unused_parameters_is_left_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B34: a head that is used on odd steps only."""
    outcome = start(two(monkeypatch, "--odd-head"), tmp_path / "run", plan=QUICK_PROFILED)
    assert diagnose(outcome) is None
    assert len(last_steps(outcome)) == 1
    # Without that option the job fails as written: nothing hangs, and a rank says why.
    command = two(monkeypatch, "--odd-head", "--unused-off")
    outcome = start(command, tmp_path / "off", limits=Limits(stall_s=60))
    problem = diagnose(outcome)
    assert problem is not None
    assert problem.code == "crash"
    assert "failed first: RuntimeError: Expected to have finished reduction" in problem.text


@pytest.mark.slow
def test_ranks_that_hold_parts_of_each_parameter_are_measured_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(QUICK_PROFILED, parity=4, disturb=1e-7)
    outcome = start(two(monkeypatch, "--shard"), tmp_path / "run", plan=plan)
    assert diagnose(outcome) is None
    assert len(last_steps(outcome)) == 1
    assert [r.moved for r in outcome.results] == [True, True]
    assert [len(r.losses) for r in outcome.results] == [4, 4]


class Ran:
    """The job of two ranks to its end under a plan: its code, and what was said."""

    def __init__(self, command: list[str], **changes: Any) -> None:
        environment = replace(here(), ranks_per_node=2)
        plan = Plan(
            tuning_id="01JE5Q3X7N0000000000000001",
            job=PlanJob(fingerprint=None, model_fingerprint=None, name="ranks.py"),
            environment=replace(environment, **changes),
            settings={"fused-optimizer": {"fused": True}},
            speedup=1.2,
            ci95=(1.1, 1.3),
            numerics=Numerics.LOSSLESS,
        )
        self.notes: list[str] = []
        self.told: dict[str, Any] = {}
        self.code = run_plan(
            command, plan, force=False, fallback=False, note=self.notes.append,
            tell=self.told.update,
        )  # fmt: skip


@pytest.mark.slow
def test_every_rank_runs_under_the_plan_and_other_numbers_of_ranks_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = Ran(two(monkeypatch, "--steps", "25"))
    assert (ran.code, ran.told["updates"], ran.told["stopped"]) == (0, 20, None)
    assert ran.told["effects"] == {"fused-optimizer": ANY}
    assert ran.told["effects"]["fused-optimizer"] is not None
    other = Ran(two(monkeypatch, "--steps", "25"), ranks_per_node=4)
    assert other.code == 0
    (said,) = other.notes[-1:]
    assert said.startswith("the plan was made for 4 ranks, and the job has 2: nothing further")
    assert other.told["effects"] == {"fused-optimizer": None}
