"""Reports of people whose tools failed them: each job of theirs through a whole profile."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from running import JOBS, QUICK, start

from aiak_tune.agent.records import read_births
from aiak_tune.agent.spec import SlicePlan
from aiak_tune.errors import JobError
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import WorkloadProfile
from aiak_tune.selector.diagnosis import diagnose
from aiak_tune.selector.profile_job import profile_job
from aiak_tune.selector.progress import Progress
from aiak_tune.selector.reporter import Silent
from aiak_tune.selector.request import Request

PLAN = replace(QUICK, profiled=3)


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def profiled(tmp_path: Path, *words: str, plan: SlicePlan = PLAN) -> WorkloadProfile:
    command = (sys.executable, *words)
    request = Request(command=command, slice=plan, runs_dir=tmp_path)
    return profile_job(request, reporter=Silent())[0]


def test_a_loader_that_sleeps_is_where_the_time_goes(tmp_path: Path) -> None:
    """B12: other tools show 0 for it."""
    profile = profiled(tmp_path, str(JOBS / "reports/sleeping_loader.py"))
    assert profile.share(Category.DATA_WAIT) > 0.8
    assert profile.breakdown_ms is not None and profile.breakdown_ms[Category.DATA_WAIT] >= 20


def test_a_loop_shorter_than_the_slice_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    """B14: steps enough for a window, not for the profiler."""
    small = str(JOBS / "small.py")
    profile = profiled(tmp_path, small, "--steps", "7")
    assert profile.steps.counted == 3 and profile.steps.profiled == 0
    codes = {warning.code for warning in profile.warnings}
    assert {"too_few_steps", "no_profiled_steps"} <= codes and profile.breakdown_ms is None


def test_a_loop_without_a_step_to_count_is_refused(tmp_path: Path) -> None:
    """B14: there is nothing to report, and why is said."""
    with pytest.raises(JobError, match="ended after 3 steps, before any could be counted"):
        profiled(tmp_path, str(JOBS / "small.py"), "--steps", "3")


def test_the_jobs_own_profiler_wins(tmp_path: Path) -> None:
    """B15: two profilers in a process would end in an error; the job's trace appears."""
    trace = tmp_path / "own.json"
    words = (str(JOBS / "reports/own_schedule.py"), str(trace), "40")
    profile = profiled(tmp_path, *words)
    assert profile.steps.counted == 6 and profile.breakdown_ms is None
    [told] = [warning.text for warning in profile.warnings if warning.code == "own_profiler"]
    assert told
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"ProfilerStep#2", "ProfilerStep#3"} <= names


@pytest.mark.parametrize("handler", [True, False])
def test_a_preempted_job_runs_its_own_handler_and_dumps_no_core(
    handler: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B17: SIGTERM while the profiler is on."""
    monkeypatch.setenv("PYTHONPATH", str(JOBS))
    script = JOBS / ("reports/own_sigterm.py" if handler else "small.py")
    run_dir = tmp_path / "run"
    sent: list[int] = []

    def preempt(progress: Progress) -> None:
        if progress.phase == "counted" and not sent:
            sent.append(read_births(run_dir)[0].pid)
            os.kill(sent[0], signal.SIGTERM)

    plan = replace(PLAN, profiled=100_000)
    outcome = start([sys.executable, str(script)], run_dir, plan=plan, watch=preempt)
    assert sent
    problem = diagnose(outcome)
    if handler:
        assert outcome.exit_code == 75
        assert "saved before the machine goes" in outcome.tail
        assert problem is None, "all its steps had been counted"
        return
    assert problem is not None
    assert (problem.code, problem.text) == (
        "interrupted", "the job was asked to end from outside (signal 15)",
    )  # fmt: skip
