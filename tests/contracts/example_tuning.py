"""A tuning with something in every field, for the tests of what stores, shows and sends one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiak_tune.api.store.documents import tuning_of
from aiak_tune.selector.results import ConfirmationRun, TuningResult, Work

DOCUMENTS = Path(__file__).resolve().parents[1] / "data" / "documents"
ID = "01JE5Q3X7N0000000000000001"


def example_tuning(**changes: Any) -> TuningResult:
    """The tuning of documents/v1 with its confirmation runs and these fields changed."""
    tuning = tuning_of(json.loads((DOCUMENTS / "v1" / "tuning.json").read_text()))
    return replace(tuning, **changes)


def example_run(pair: int) -> ConfirmationRun:
    return ConfirmationRun(
        pair=pair,
        side="baseline",
        settings={},
        samples_per_s=1049.2,
        step_ms=61.0,
        duration_s=20.5,
        work=Work(losses=(2.3, 2.2), updates=20, moved=True),
    )
