"""`allocator` in real processes: the variables are heeded there, and a user's own stay.

torch's segments on a GPU are in tests/gpu/test_process_entries.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import plain_job, record_of

from aiak_tune.agent.spec import RunSpec, SlicePlan
from aiak_tune.optimizations import allocator
from aiak_tune.optimizations.allocator import CPU_VARIABLES, GPU_VARIABLES, KEEP, set_variables
from aiak_tune.optimizations.base import NoEffectError, Settings
from aiak_tune.optimizations.catalog import by_name, judge
from aiak_tune.optimizations.examples import ON_CPU, PLAIN
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.hardware import MALLOCS, preloadable
from aiak_tune.profiles.workload import WorkloadProfile
from aiak_tune.selector.launch import launch
from aiak_tune.selector.variables import variables_of

ENTRY = by_name["allocator"]
KEPT: Settings = {"allocator": {"use": "kept_heap"}}
JOB = """
import torch

model = torch.nn.Linear(4096, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
while True:
    optimizer.zero_grad()
    model(torch.ones(3072, 4096)).square().mean().backward()  # 48 MiB anew in each step
    optimizer.step()
"""
BATCH_PAGES = 48 * 2**20 / os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*GPU_VARIABLES, *CPU_VARIABLES):
        monkeypatch.delenv(name, raising=False)


def on_cpu(**changes: Any) -> WorkloadProfile:
    return replace(ON_CPU, job=replace(ON_CPU.job, **{"page_faults": 5000.0} | changes))


def on_gpu(**changes: Any) -> WorkloadProfile:
    return replace(PLAIN, job=replace(PLAIN.job, **{"device_requests": 2.0} | changes))


@pytest.mark.parametrize(
    ("profile", "why"),
    [
        (on_gpu(model=None), "no model"),
        (on_gpu(allocator_by="PYTORCH_ALLOC_CONF=x:1"), "chosen: PYTORCH_ALLOC_CONF=x:1"),
        (on_gpu(device_requests=None), "not known how often"),
        (on_gpu(device_requests=0.0), "asks the driver for no memory"),
        (on_cpu(page_faults=None), "not known how much"),
        (on_cpu(page_faults=3.0), "for 3 pages only"),
    ],
)
def test_it_says_why_the_allocators_stay(profile: WorkloadProfile, why: str) -> None:
    finding = ENTRY.check(profile)
    assert not finding.fits and why in finding.reason


def test_what_is_tried_is_there_and_of_the_kind_that_the_job_needs() -> None:
    assert ENTRY.check(on_gpu()).space == {"use": ("expandable_segments",)}
    assert ENTRY.check(on_cpu()).space == {"use": ("kept_heap",)}
    one = replace(on_cpu().environment, mallocs=(MALLOCS[0],))
    with_one = replace(on_cpu(), environment=one)
    assert ENTRY.check(with_one).space == {"use": ("kept_heap", MALLOCS[0])}


def test_no_more_is_promised_than_pages_and_idle_time_cost() -> None:
    step_ms = ON_CPU.steps.step_ms.mean
    faults = 0.25 * step_ms / allocator.FAULT_MS_AT_MOST
    finding = judge(ENTRY, on_cpu(page_faults=faults))
    assert finding.bound == pytest.approx(1 / 0.75)
    busy = replace(on_gpu(), breakdown_ms={Category.COMPUTE: step_ms})
    assert not judge(ENTRY, busy).fits, "the host is never waited for"


@pytest.mark.parametrize("use", ENTRY.space["use"])
def test_the_variables_are_set_and_taken_back(use: str) -> None:
    given = {"PATH": "/bin", "MALLOC_ARENA_MAX": "2"}
    environment = dict(given)
    undo = set_variables(environment, use)
    assert environment == given | dict(allocator.variables_of(use))
    set_variables(environment, use)()
    assert environment != given, "what was there before stays"
    undo()
    assert environment == given


@pytest.mark.parametrize("use", ["expandable_segments", "kept_heap", "libjemalloc.so.2"])
def test_the_users_own_is_left_alone_and_told(use: str) -> None:
    for name in GPU_VARIABLES if use == "expandable_segments" else CPU_VARIABLES:
        environment = {name: "the user's"}
        with pytest.raises(NoEffectError, match=f"{name}=the user's is set for the job"):
            set_variables(environment, use)
        assert environment == {name: "the user's"}


def test_the_tool_adds_what_is_new_and_nothing_where_the_user_chose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert variables_of({**KEPT, "threads": {"num_threads": 1}}, by_name) == KEEP
    monkeypatch.setenv("MALLOC_CONF", "junk:true")
    assert variables_of(KEPT, by_name) == {}


def test_a_kept_heap_is_seen_in_the_job_and_pages_are_used_again(tmp_path: Path) -> None:
    script, run_dir = tmp_path / "job.py", tmp_path / "run"
    script.write_text(JOB)
    run_dir.mkdir()
    plan = SlicePlan(parity=0, warmup=4, steps=8, profiled=0, min_window_s=0.0)
    variables = variables_of(KEPT, by_name)
    spec = RunSpec(run_dir=str(run_dir), settings=KEPT, slice=plan, environment=variables)
    (record,) = launch((sys.executable, str(script)), spec).results
    assert record.effects == {"allocator": "malloc keeps what it was given, large blocks too"}
    assert record.facts["page_faults"] < BATCH_PAGES / 4, "the heap may grow once more"


def test_as_written_each_batch_is_made_of_pages_never_touched_before(tmp_path: Path) -> None:
    def job() -> None:
        model = torch.nn.Linear(4096, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for _ in range(20):
            model(torch.ones(3072, 4096)).square().mean().backward()
            optimizer.step()

    facts = record_of(tmp_path, job).facts
    assert facts["page_faults"] > BATCH_PAGES / 2 and facts["allocator_by"] is None


def test_a_job_that_never_got_the_variables_is_told_apart(tmp_path: Path) -> None:
    """As behind sudo or `env -i`: malloc has read its own long before."""
    record = record_of(tmp_path, plain_job, settings=KEPT)
    for name in KEEP:
        os.environ.pop(name)
    assert record.effects == {"allocator": None}
    assert "another malloc than glibc's" in record.warnings[0][1]


@pytest.mark.parametrize("use", MALLOCS)
def test_another_malloc_is_seen_in_the_process(use: str) -> None:
    ask = f"from aiak_tune.optimizations.allocator import effect; print(effect({use!r}))"
    if use not in preloadable():
        with pytest.raises(NoEffectError, match="not installed here"):
            ENTRY.apply({}, {"use": use})
        pytest.skip(f"{use} is not installed here")
    environment = dict(os.environ)
    ENTRY.apply(environment, {"use": use})
    done = subprocess.run(
        [sys.executable, "-c", ask], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"malloc is {use.split('.')[0]}'s\n", done.stderr
    with pytest.raises(NoEffectError, match="did not load"):
        allocator.effect(use)
