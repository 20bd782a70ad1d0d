"""What a rank tells of its slice while it runs: a line of progress now and then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from aiak_tune.profiles.clock import StepTimes


class Telling:
    """Appends to the rank's progress file, which the tool follows."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._told = 0

    def start_over(self) -> None:
        """The steps that were counted so far count no more."""
        self._told = 0

    def tell(
        self, rank: int, phase: str, seen: int, steps: Sequence[StepTimes], started_ns: int
    ) -> None:
        """Tell the phase and the counted steps since the last line; `seen` came before them."""
        wall_ns = steps[-1].end_ns - started_ns if steps else 0
        line = {
            "phase": phase,
            "step": seen + len(steps),
            "counted": len(steps),
            "mean_step_ms": wall_ns / len(steps) / 1e6 if steps else None,
            "steps_ms": [round(s.step_ns / 1e6, 3) for s in steps[self._told :]],
        }
        self._told = len(steps)
        with open(self._run_dir / f"progress-{rank}.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
