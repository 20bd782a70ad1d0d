"""`cudnn-benchmark` without a GPU: the switch is put back, and a job's own choice wins.

What it does to convolutions is in tests/gpu/test_process_entries.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import QUICK, plain_job, record_of

from aiak_tune.ops import switches
from aiak_tune.optimizations.base import NoEffectError
from aiak_tune.optimizations.catalog import by_name, judge
from aiak_tune.optimizations.cudnn_benchmark import benchmark
from aiak_tune.optimizations.examples import ON_CPU, PLAIN
from aiak_tune.profiles.workload import WorkloadProfile

ENTRY = by_name["cudnn-benchmark"]
BY_TRIAL: Any = {"cudnn-benchmark": {"benchmark": True}}
CUDNN = torch.backends.cudnn


def wishes() -> tuple[bool, bool, bool]:
    return CUDNN.benchmark, CUDNN.deterministic, torch.are_deterministic_algorithms_enabled()


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(CUDNN, "is_available", lambda: True)  # the switch is there without it
    setter = vars(type(CUDNN))["benchmark"].setter
    yield
    for _, told in tuple(switches._listeners):  # a slice ends with its settings in force
        told("the end of the test")
    with switches.ours():
        CUDNN.benchmark = CUDNN.deterministic = False
        torch.use_deterministic_algorithms(False)
    assert vars(type(CUDNN))["benchmark"].setter is setter


def job(**changes: Any) -> WorkloadProfile:
    return replace(PLAIN, job=replace(PLAIN.job, **{"shapes_vary": False} | changes))


def no_convolution() -> WorkloadProfile:
    assert PLAIN.job.model is not None
    return job(model=replace(PLAIN.job.model, convolutions=0))


@pytest.mark.parametrize(
    ("profile", "why"),
    [
        (job(model=None), "not known whether the model"),
        (no_convolution(), "no 2-D or 3-D convolution"),
        (ON_CPU, "no cuDNN"),
        (job(deterministic=True), "deterministic"),
        (job(cudnn_benchmark=True, cudnn_benchmark_by="x"), "already"),
        (job(cudnn_benchmark_by="torch.backends.cudnn.benchmark"), "cudnn.benchmark"),
        (job(shapes_vary=None), "not known whether the batches"),
        (job(shapes_vary=True), "several shapes"),
        (replace(job(), convolution_share=0.0), "take 0% of the step"),
    ],
)
def test_it_says_why_cudnn_goes_on_by_rule(profile: WorkloadProfile, why: str) -> None:
    finding = ENTRY.check(profile)
    assert not finding.fits and why in finding.reason


def test_no_more_is_promised_than_convolutions_take() -> None:
    assert judge(ENTRY, replace(job(), convolution_share=0.2)).bound == pytest.approx(1.25)
    assert judge(ENTRY, replace(job(), convolution_share=1.0)).fits


def test_undo_puts_it_back() -> None:
    change = benchmark()
    assert change is not None and wishes() == (True, False, False)
    assert benchmark() is None, "it is so already"
    assert change.effect() is None, "no convolution ran on a GPU"
    change.undo()
    assert wishes() == (False, False, False)


@pytest.mark.parametrize("wish", ["cudnn", "algorithms"])
def test_deterministic_algorithms_asked_for_before_stay_so(wish: str) -> None:
    if wish == "cudnn":
        CUDNN.deterministic = True
    else:
        torch.use_deterministic_algorithms(True)
    with pytest.raises(NoEffectError, match="deterministic"):
        benchmark()
    assert not CUDNN.benchmark


def set_in(name: str, value: bool) -> Callable[[], None]:
    return lambda: setattr(CUDNN, name, value)


CHOICES: dict[str, Callable[[], None]] = {
    "torch.backends.cudnn.benchmark": set_in("benchmark", False),
    "torch.backends.cudnn.deterministic": set_in("deterministic", True),
    "torch.use_deterministic_algorithms": lambda: torch.use_deterministic_algorithms(True),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_job_that_chooses_gets_what_it_had_without_us(name: str, tmp_path: Path) -> None:
    def chooses() -> None:
        CHOICES[name]()
        plain_job()

    record = record_of(tmp_path, chooses, QUICK, BY_TRIAL)
    assert wishes() == (False, "cudnn" in name and "deter" in name, "use_" in name)
    assert record.effects == {"cudnn-benchmark": None}
    assert ["cudnn-benchmark", f"the job chose by {name}, and was left alone"] in record.warnings
    facts = record_of(tmp_path, chooses).facts
    assert facts["cudnn_benchmark_by"] == (name if "benchmark" in name else None)
    assert facts["deterministic"] is ("deterministic" in name) and not facts["cudnn_benchmark"]


def test_flags_around_a_part_of_the_job_are_no_choice(tmp_path: Path) -> None:
    def around_a_part() -> None:
        with CUDNN.flags(enabled=False):
            pass
        torch.use_deterministic_algorithms(False)
        plain_job()

    record = record_of(tmp_path, around_a_part, QUICK, BY_TRIAL)
    assert CUDNN.benchmark and record.facts["cudnn_benchmark_by"] is None
    assert not record.warnings


def test_without_cudnn_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CUDNN, "is_available", lambda: False)
    assert benchmark() is None and not CUDNN.benchmark
