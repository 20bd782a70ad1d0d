"""`tf32` without a GPU: torch's switches are exactly as before, and a job's own precision wins.

What it does to products is in tests/gpu/test_process_entries.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import QUICK, plain_job, record_of

from aiak_tune.ops import switches, tf32
from aiak_tune.optimizations.base import Applied, NoEffectError, Numerics
from aiak_tune.optimizations.catalog import by_name, judge
from aiak_tune.optimizations.examples import ON_CPU, PLAIN
from aiak_tune.optimizations.tf32 import VARIABLES, allow_tf32
from aiak_tune.profiles.workload import WorkloadProfile
from aiak_tune.selector.confirmation import is_probed

ENTRY = by_name["tf32"]
ALLOW: Any = {"tf32": {"allow": True}}
BACKENDS: Any = torch.backends
OF_DYNAMO: dict[str, Any] = {"__name__": "torch._dynamo.convert_frame"}
NEWER = hasattr(torch._C, "_set_fp32_precision_setter")
READINGS: tuple[Callable[[], object], ...] = (
    torch.get_float32_matmul_precision,
    lambda: BACKENDS.cuda.matmul.allow_tf32,
    lambda: BACKENDS.cudnn.allow_tf32,
    lambda: BACKENDS.cuda.matmul.fp32_precision,
    lambda: BACKENDS.cudnn.conv.fp32_precision,
    lambda: BACKENDS.mkldnn.matmul.fp32_precision,
)


def state() -> list[object]:
    def read(reading: Callable[[], object]) -> object:
        try:
            return reading()
        except (RuntimeError, AttributeError) as error:
            return type(error)

    return [read(reading) for reading in READINGS]


def reset() -> None:
    with switches.ours():
        torch.set_float32_matmul_precision("highest")
        if NEWER:
            BACKENDS.fp32_precision = "none"
            BACKENDS.cudnn.fp32_precision = "none"
            BACKENDS.cuda.matmul.fp32_precision = "none"
            BACKENDS.mkldnn.matmul.fp32_precision = "none"
        BACKENDS.cudnn.allow_tf32 = True


AT_FIRST = state()


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    setter = torch._C._set_cublas_allow_tf32
    yield
    for _, told in tuple(switches._listeners):  # a slice ends with its settings in force
        told("the end of the test")
    reset()
    assert state() == AT_FIRST and torch._C._set_cublas_allow_tf32 is setter


def allowed() -> Applied:
    found = allow_tf32()
    assert found is not None
    return found


def job(**changes: Any) -> WorkloadProfile:
    return replace(PLAIN, job=replace(PLAIN.job, **changes))


@pytest.mark.parametrize(
    ("profile", "why"),
    [
        (job(model=None), "no model"),
        (ON_CPU, "on the CPU"),
        (replace(PLAIN, environment=replace(PLAIN.environment, compute_capability=(7, 5))), "8.0"),
        (replace(PLAIN, environment=replace(PLAIN.environment, compute_capability=None)), "8.0"),
        (job(dtype="bfloat16"), "bfloat16, not float32"),
        (job(amp=True), "its own mixed precision"),
        (job(tf32=True, precision_by="torch.set_float32_matmul_precision"), "already"),
        (job(precision_by="NVIDIA_TF32_OVERRIDE=0"), "by NVIDIA_TF32_OVERRIDE=0"),
        (replace(PLAIN, fp32_matmul_share=0.0), "take 0% of the step"),
        (replace(PLAIN, convolution_share=0.3), "matrix products take 0% of the step"),
    ],
)
def test_it_says_why_a_job_keeps_its_precision(profile: WorkloadProfile, why: str) -> None:
    finding = ENTRY.check(profile)
    assert not finding.fits and why in finding.reason


def test_no_more_is_promised_than_the_products_take() -> None:
    finding = judge(ENTRY, replace(PLAIN, fp32_matmul_share=0.2))
    assert finding.bound == pytest.approx(1 / (1 - 0.2 * 7 / 8))
    assert judge(ENTRY, replace(PLAIN, fp32_matmul_share=0.005)).fits is False
    assert judge(ENTRY, replace(PLAIN, fp32_matmul_share=None)).fits
    assert judge(ENTRY, replace(PLAIN, convolution_share=0.05)).bound == finding.bound


def test_it_changes_numbers_and_is_compared_in_the_process() -> None:
    assert ENTRY.numerics(PLAIN, {}) is Numerics.CHANGING
    assert is_probed(ALLOW, by_name, PLAIN)
    assert not is_probed({"threads": {"num_threads": 2}}, by_name, PLAIN)


def test_undo_and_the_plain_computation_leave_nothing_behind() -> None:
    change = allowed()
    assert tf32.in_force() and torch.get_float32_matmul_precision() == "high"
    assert state()[5] == AT_FIRST[5], "products on the CPU are as written"
    assert allow_tf32() is None, "it is so already"
    assert change.plain is not None
    with change.plain():
        assert state() == AT_FIRST
    assert tf32.in_force()
    change.undo()
    assert state() == AT_FIRST


@pytest.mark.skipif(not NEWER, reason="torch has no fp32_precision before 2.9")
def test_ieee_asked_for_by_hand_is_asked_for_again() -> None:
    BACKENDS.cuda.matmul.fp32_precision = "ieee"
    before = state()
    change = allowed()
    assert tf32.in_force()
    change.undo()
    assert state() == before


def set_in(owner: object, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


CHOICES: dict[str, Callable[[], None]] = {
    "highest": lambda: torch.set_float32_matmul_precision("highest"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "off": set_in(BACKENDS.cuda.matmul, "allow_tf32", False),
    "cudnn": set_in(BACKENDS.cudnn, "allow_tf32", False),
}
if NEWER:
    CHOICES |= {
        "ieee": set_in(BACKENDS.cuda.matmul, "fp32_precision", "ieee"),
        "tf32": set_in(BACKENDS.cuda.matmul, "fp32_precision", "tf32"),
        "cuda": set_in(BACKENDS.cudnn, "fp32_precision", "ieee"),
        "all": set_in(BACKENDS, "fp32_precision", "ieee"),
    }


@pytest.mark.parametrize("choice", CHOICES)
def test_a_job_that_chooses_gets_what_it_had_without_us(choice: str, tmp_path: Path) -> None:
    """Also that reading one interface raises, where the job mixes them, and only there."""
    CHOICES[choice]()
    wanted = state()
    reset()

    def chooses() -> None:
        CHOICES[choice]()
        plain_job()

    record = record_of(tmp_path, chooses, QUICK, ALLOW)
    assert state() == wanted
    assert record.effects == {"tf32": None}
    assert ["tf32", f"the job chose its float32 precision by {record.facts['precision_by']}"] in (
        record.warnings
    )
    reset()
    facts = record_of(tmp_path, chooses).facts
    assert facts["precision_by"] == record.facts["precision_by"] is not None
    assert facts["tf32"] is (choice in ("medium", "tf32"))


def test_what_torch_sets_for_itself_is_no_choice(tmp_path: Path) -> None:
    def uses_both() -> None:
        with BACKENDS.cudnn.flags(enabled=False):
            pass
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        # As dynamo of torch 2.6 does after each compilation.
        exec("import torch; torch.backends.cuda.matmul.allow_tf32 = True", OF_DYNAMO)
        plain_job()

    record = record_of(tmp_path, uses_both, QUICK, ALLOW)
    assert record.facts["precision_by"] is None and record.facts["tf32"]
    assert record.effects == {"tf32": None}, "nothing was computed on a GPU"
    assert not record.warnings


@pytest.mark.parametrize("name", VARIABLES)
def test_the_users_variable_is_left_alone_and_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "0")
    with pytest.raises(NoEffectError, match=f"{name}=0 is set for the job, and was left alone"):
        ENTRY.apply(torch, ALLOW["tf32"])
    record = record_of(tmp_path, plain_job, QUICK, ALLOW)
    assert not tf32.in_force() and record.facts["precision_by"] == f"{name}=0"


def test_products_on_this_cpu_keep_their_digits() -> None:
    assert not tf32.rounds(torch.device("cpu"))
