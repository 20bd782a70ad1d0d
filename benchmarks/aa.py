"""A/A tunings: settings that do nothing, forced through search and confirmation.

Each tuning has a job of a few milliseconds a step and two inert entries that set a variable which
nobody reads. None may end `faster`. Writes the row `aa_false_faster` of docs/results/tune.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import add_rows, row

from aiak_tune.agent.spec import SlicePlan
from aiak_tune.optimizations.base import Applied, Finding, Numerics, Optimization, Params, Stage
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import WorkloadProfile
from aiak_tune.selector.reporter import Silent
from aiak_tune.selector.request import Request
from aiak_tune.selector.results import TuningResult
from aiak_tune.selector.tune import tune

JOB = Path(__file__).with_name("jobs") / "tiny.py"


class Inert(Optimization):
    """Sets a variable that nobody reads."""

    summary = "nothing"
    stage = Stage.ENVIRONMENT
    level = 0
    addresses = frozenset(Category)  # whatever the breakdown, it is forced in
    space = {}
    conflicts = frozenset()
    examples = ()

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]

    def numerics(self, profile: WorkloadProfile, params: Params) -> Numerics:
        return Numerics.LOSSLESS

    def check(self, profile: WorkloadProfile) -> Finding:
        return Finding(fits=True, reason="forced", bound=2.0)

    def apply(self, target: Any, params: Params) -> Applied | None:
        target[f"AIAK_TUNE_{self.name.upper().replace('-', '_')}"] = "1"
        return Applied(undo=lambda: None, effect=lambda: "set")


class Kept:
    """A store that keeps the last state only."""

    def save(self, tuning: TuningResult) -> None:
        self.last = tuning


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tunings", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="two tunings, nothing written")
    args = parser.parse_args()
    os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="aiak-aa-")
    catalog = (Inert("inert-a"), Inert("inert-b"))
    faster, began, said = [], time.monotonic(), []
    for number in range(2 if args.quick else args.tunings):
        request = Request(
            command=(sys.executable, str(JOB)), trials=4, force_confirmation=True, seed=number,
            slice=SlicePlan(profiled=2, min_window_s=1.0),
        )  # fmt: skip
        result = tune(request, store=Kept(), reporter=Silent(), catalog=catalog)  # type: ignore[arg-type]
        faster.append(float(result.verdict == "faster"))
        pairs = len({r.pair for r in result.confirmation})
        said.append(f"{result.verdict} after {pairs} pairs")
        print(f"{number + 1}: {said[-1]}: {result.verdict_reason}", flush=True)
    minutes = (time.monotonic() - began) / 60
    note = (
        f"{len(faster)} tunings in {minutes:.0f} minutes, every candidate confirmed; other work "
        "ran on the machine meanwhile"
    )
    if not args.quick:
        found = row("aa_false_faster", faster, unit="tunings", statistic="sum", note=note)
        add_rows("tune", [found])


if __name__ == "__main__":
    main()
