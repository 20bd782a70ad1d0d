"""The gate stays closed without evidence, and opens on sound runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aiak_tune.selector.parity import parity
from aiak_tune.selector.results import ProbeResult, Work

LOSSES = tuple(2.0 - 0.1 * i for i in range(12))
BATCHES = tuple(f"batch{i}" for i in range(12))
GOOD = ProbeResult(what="model", error=0.003, yard=0.002)
PLAIN = Work(
    losses=LOSSES,
    late_losses=(0.5,),
    batches=BATCHES,
    samples_per_step=32.0,
    updates=40,
    moved=True,
)
DISTURBED = [replace(PLAIN, losses=tuple(x + d for x in LOSSES)) for d in (1e-4, -1e-4)]
CHANGED = replace(PLAIN, losses=tuple(x + 2e-4 for x in LOSSES), probes=(GOOD,))


def reason(*changed: Work, probed: bool = True, disturbed: Any = DISTURBED) -> str | None:
    answer = parity(PLAIN, disturbed, changed, probed=probed)
    assert answer.passed is (answer.reason is None)
    return answer.reason


def test_sound_runs_open_it() -> None:
    assert reason(CHANGED) is None
    assert reason(CHANGED, replace(CHANGED, probes=())) is None, "one run was compared"
    assert reason(replace(CHANGED, probes=()), probed=False) is None
    exact = ProbeResult(what="optimizer", error=5e-7, yard=0.0)
    assert reason(replace(CHANGED, probes=(GOOD, exact))) is None, "rounding is always free"


def probe(error: float | None, yard: float | None, problem: str | None = None) -> Any:
    return (ProbeResult(what="model", error=error, yard=yard, problem=problem),)


CLOSED: list[tuple[dict[str, Any], str]] = [
    ({"losses": ()}, "loss"),
    ({"losses": tuple(x + 1e-2 for x in LOSSES)}, "rounding"),
    ({"losses": (*LOSSES[:5], None, *LOSSES[6:])}, "finite"),
    ({"late_losses": (0.5, None)}, "not finite"),
    ({"batches": ("other", *BATCHES[1:])}, "batch 1 is another one"),
    ({"batches": BATCHES[:4]}, "only 4 of the first 12 batches"),
    ({"batches": ()}, "only 0 of the first 12 batches"),
    ({"probes": ()}, "could not be compared"),
    ({"probes": probe(None, None, "no output")}, "no output"),
    ({"probes": probe(0.01, 0.002)}, "more than twice"),
    ({"probes": probe(float("nan"), 0.002)}, "more than twice"),
    ({"probes": probe(0.01, float("inf"))}, "not finite"),
    ({"probes": probe(float("nan"), float("nan"))}, "not finite"),
    ({"updates_skipped": 2}, "2 optimizer updates were skipped"),
    ({"moved": False}, "did not change"),
    ({"moved": None}, "did not change, or none could be watched"),
    ({"samples_per_step": 16.0}, "192 samples, 12 over 384"),
]


@pytest.mark.parametrize(("fault", "why"), CLOSED, ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("first", [True, False])
def test_each_fault_closes_it_with_its_reason(fault: dict[str, Any], why: str, first: bool) -> None:
    faulty = replace(CHANGED, **fault)
    if fault == {"probes": ()}:
        assert why in str(reason(faulty))
        return
    runs = (faulty, CHANGED) if first else (CHANGED, faulty)
    assert why in str(reason(*runs))


def test_without_a_band_it_is_closed() -> None:
    assert reason(CHANGED, disturbed=[])
    assert reason(CHANGED, disturbed=[replace(PLAIN, losses=())])


def test_batches_of_an_unseeded_job_are_not_compared() -> None:
    others = [replace(d, batches=("x", *BATCHES[1:])) for d in DISTURBED]
    changed = replace(CHANGED, batches=("y", *BATCHES[1:]))
    assert reason(changed, disturbed=others) is None
    assert "batch 1" in str(reason(changed))
