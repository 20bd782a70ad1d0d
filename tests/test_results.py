"""docs/results holds measured figures only: each value is recomputed from its raw samples."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
AREAS = sorted((ROOT / "docs" / "results").glob("*.json"))
KEYS = {
    "name", "value", "unit", "low", "high", "samples", "statistic", "against", "note",
}  # fmt: skip
NEEDED = {
    "tune": {
        "demo_speedup", "agent_overhead_us", "agent_overhead_share", "startup_added_ms",
        "tool_share", "help_s", "aa_false_faster",
    },
}  # fmt: skip


def _benchmarks() -> ModuleType:
    place = ROOT / "benchmarks" / "results.py"
    spec = importlib.util.spec_from_file_location("benchmark_results", place)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _rows() -> list[Any]:
    found = [(place.stem, row) for place in AREAS for row in json.loads(place.read_text())["rows"]]
    return [pytest.param(area, row, id=f"{area}-{row['name']}") for area, row in found]


@pytest.mark.parametrize(("area", "row"), _rows())
def test_each_value_follows_from_its_samples(area: str, row: dict[str, Any]) -> None:
    assert set(row) == KEYS
    if row["value"] is None:
        assert row["note"], "a row without a value says why"
        return
    found = _benchmarks().value_of(row["statistic"], row["samples"])
    assert row["value"] == pytest.approx(found)
    if row["low"] is not None:
        assert row["low"] <= row["value"] <= row["high"]


@pytest.mark.parametrize("area", NEEDED)
def test_an_area_has_the_rows_that_the_design_names(area: str) -> None:
    document = json.loads((ROOT / "docs" / "results" / f"{area}.json").read_text())
    assert document["area"] == area
    assert {row["name"] for row in document["rows"]} >= NEEDED[area]
    assert document["commit"] and document["versions"]["torch"]
