"""What a running job tells of its slice: each rank's progress file, and all of them as one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from aiak_tune.agent.records import TORCH_BIRTHS, read_seen

PHASES = ("starting", "warm-up", "counting", "counted", "probing", "done")
ENDING = ".jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the job has told so far: its phase and the counted steps' times.

    Of several ranks, it is as far as the last of them; the times are those of the slowest.
    `at`: the step of each rank. `seen`: before the first step, what selector/unseen.py has words
    for.
    """

    phase: str = "starting"
    counted: int = 0
    step: int = 0
    steps_ms: tuple[float, ...] = ()
    at: Mapping[int, int] = field(default_factory=dict)
    seen: frozenset[str] = frozenset()

    def behind_text(self) -> str:
        """Return ` (rank 1; the furthest is at step 7)` where ranks are apart, else nothing."""
        last = [str(rank) for rank, step in sorted(self.at.items()) if step == self.step]
        furthest = max(self.at.values(), default=self.step)
        if furthest == self.step:
            return ""
        name = "rank" if len(last) == 1 else "ranks"
        return f" ({name} {', '.join(last)}; the furthest is at step {furthest})"


class ProgressReader:
    """Reads what the ranks append to their progress files."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._ranks: dict[int, _RankReader] = {}
        self.progress = Progress()

    def read(self) -> bool:
        """Take the new whole lines; return whether there were any."""
        if not self.progress.step:
            seen = read_seen(self._run_dir)
            if (self._run_dir / TORCH_BIRTHS).exists():
                seen |= {"torch"}
            self.progress = replace(self.progress, seen=seen)
        for place in self._run_dir.glob(f"progress-*{ENDING}"):
            number = place.name.removesuffix(ENDING).partition("-")[2]
            if number.isdigit() and int(number) not in self._ranks:
                self._ranks[int(number)] = _RankReader(place)
        news = [reader.read() for reader in self._ranks.values()]  # all, not up to the first
        if any(news):
            self.progress = self._merged()
        return any(news)

    def _merged(self) -> Progress:
        told = {n: r.progress for n, r in sorted(self._ranks.items())}
        last = min(told.values(), key=lambda p: (_order(p.phase), p.step))
        slowest = max(told.values(), key=lambda p: fmean(p.steps_ms) if p.steps_ms else 0.0)
        return Progress(
            phase=last.phase,
            counted=min(p.counted for p in told.values()),
            step=min(p.step for p in told.values()),
            steps_ms=slowest.steps_ms,
            at={n: p.step for n, p in told.items()} if len(told) > 1 else {},
        )


class _RankReader:
    def __init__(self, place: Path) -> None:
        self._place = place
        self._offset = 0
        self.progress = Progress()

    def read(self) -> bool:
        try:
            with open(self._place, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return False
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        for line in data[:whole].splitlines():
            try:
                told = json.loads(line)
            except ValueError:  # a full disk took a part of it; the result tells whether it matters
                continue
            steps = self.progress.steps_ms + tuple(told["steps_ms"])
            self.progress = Progress(
                phase=told["phase"], counted=told["counted"], step=told["step"], steps_ms=steps
            )
        return whole > 0


def _order(phase: str) -> int:
    return PHASES.index(phase) if phase in PHASES else 0
