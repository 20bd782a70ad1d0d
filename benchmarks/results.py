"""Writes docs/results/AREA.json: rows with their raw samples, each value recomputable from them."""

from __future__ import annotations

import json
import math
import platform
import statistics
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from aiak_tune.profiles.hardware import gpus, host_facts
from aiak_tune.selector.quantiles import t_quantile

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"


def value_of(statistic: str, samples: Sequence[float]) -> float:
    """Return a row's value from its samples: median, mean, geomean, sum or max."""
    if statistic == "geomean":
        return math.exp(statistics.fmean(math.log(s) for s in samples))
    makers = {
        "median": statistics.median,
        "mean": statistics.fmean,
        "sum": lambda s: float(sum(s)),
        "max": max,
    }
    return float(makers[statistic](samples))


def row(
    name: str,
    samples: Sequence[float],
    *,
    unit: str,
    statistic: str = "median",
    against: str | None = None,
    note: str | None = None,
    interval: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """Return one row; the interval is 95%, by Student's t of the (for ratios log) samples."""
    low, high = interval or _interval(samples, logs=statistic == "geomean")
    return {
        "name": name,
        "value": value_of(statistic, samples),
        "unit": unit,
        "low": low,
        "high": high,
        "samples": list(samples),
        "statistic": statistic,
        "against": against,
        "note": note,
    }


def _interval(samples: Sequence[float], *, logs: bool) -> tuple[float | None, float | None]:
    if len(samples) < 3:
        return None, None
    values = [math.log(s) for s in samples] if logs else list(samples)
    middle = statistics.fmean(values)
    reach = t_quantile(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    low, high = middle - reach, middle + reach
    return (math.exp(low), math.exp(high)) if logs else (low, high)


def add_rows(area: str, rows: Sequence[dict[str, Any]], *, machine: str | None = None) -> Path:
    """Put rows into the area's file; a row of the same name is replaced."""
    place = RESULTS / f"{area}.json"
    old = json.loads(place.read_text())["rows"] if place.exists() else []
    names = {r["name"] for r in rows}
    host = host_facts() | gpus()
    document = {
        "area": area,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine
        or f"{host['cpu']}, {host['cores']} cores, {host.get('gpu') or 'no GPU'}",
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in ("torch", "optuna", "numpy")},
        "commit": _commit(),
        "rows": [r for r in old if r["name"] not in names] + list(rows),
    }
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(document, indent=1) + "\n")
    return place


def _commit() -> str | None:
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None
