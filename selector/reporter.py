"""What a tuning tells while it runs; `cli` shows it, a test or a service may keep it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aiak_tune.optimizations.base import Settings
from aiak_tune.profiles.workload import WorkloadProfile
from aiak_tune.selector.progress import Progress
from aiak_tune.selector.results import ConfirmationRun, FindingRecord, Trial


class Reporter(Protocol):
    """Told in this order: cost, then starts with their progress and results, then the end."""

    def cost(self, *, starts: int, seconds_each: float | None) -> None:
        """At most so many starts of the job are to come; seconds None: not known yet."""
        ...

    def started(self, what: str, settings: Settings) -> None:
        """A start begins: baseline, trial 3 of at most 5, confirmation run 2: best."""
        ...

    def progressed(self, progress: Progress, *, wanted: int) -> None:
        """About every 50 ms: phase and counted steps; `wanted` steps are to be counted."""
        ...

    def profiled(self, profile: WorkloadProfile, findings: Sequence[FindingRecord]) -> None:
        """The baseline is profiled and the catalog judged."""
        ...

    def trial_ended(self, trial: Trial, *, baseline: float | None) -> None:
        """A trial is done; `baseline` is the samples per second of the job as written."""
        ...

    def confirmed(self, runs: Sequence[ConfirmationRun], said: str) -> None:
        """A pair of the confirmation is done; `said` is the test's state in plain words."""
        ...

    def note(self, text: str) -> None:
        """Something the user should know now: waiting for a lock, resuming, a fallback."""
        ...


class Silent:
    """A reporter that tells nobody."""

    def cost(self, *, starts: int, seconds_each: float | None) -> None:
        """Nothing."""

    def started(self, what: str, settings: Settings) -> None:
        """Nothing."""

    def progressed(self, progress: Progress, *, wanted: int) -> None:
        """Nothing."""

    def profiled(self, profile: WorkloadProfile, findings: Sequence[FindingRecord]) -> None:
        """Nothing."""

    def trial_ended(self, trial: Trial, *, baseline: float | None) -> None:
        """Nothing."""

    def confirmed(self, runs: Sequence[ConfirmationRun], said: str) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""
