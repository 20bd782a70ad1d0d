"""Adds what first_path.sh measured on a GPU machine to docs/results/tune.json.

`python benchmarks/gpu/collect.py FOLDER`: the folder with NAME.tuning.json files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from results import add_rows, row  # noqa: E402


def row_of(place: Path) -> dict[str, Any]:
    """Return the row of one tuning: the ratios of its confirmation's pairs."""
    tuning = json.loads(place.read_text())
    best, runs = tuning["best"], tuning["confirmation"]
    where = tuning["environment"]
    rate = {
        (r["pair"], r["side"]): r["samples_per_s"]
        for r in runs
        if r["side"] == "baseline" or (best and r["settings"] == best["settings"])
    }
    pairs = sorted({p for p, side in rate if side != "baseline"})
    ratios = [
        next(v for (p, side), v in rate.items() if p == pair and side != "baseline")
        / rate[pair, "baseline"]
        for pair in pairs
    ]
    parts = tuning["trials"][0]["breakdown_ms"]
    shares = ", ".join(f"{name} {ms:.1f} ms" for name, ms in parts.items() if ms > 0)
    note = (
        f"{tuning['verdict']} with {json.dumps(best['settings'] if best else {})}; as written: "
        f"{shares}; {where['gpu']}, {where['cores']} cores, torch {where['torch']}, "
        f"{tuning['created_at'][:10]}; the interval is the sequential test's"
    )
    name = f"gpu_{place.name.split('.')[0]}_speedup"
    interval = tuple(best["ci95"]) if best else None
    return row(
        name, ratios or [1.0], unit="times", statistic="geomean", against="the job as written",
        note=note, interval=interval,
    )  # fmt: skip


if __name__ == "__main__":
    for found in sorted(Path(sys.argv[1]).glob("*.tuning.json")):
        made = row_of(found)
        add_rows("tune", [made])
        print(json.dumps(made))
