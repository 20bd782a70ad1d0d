"""Starts of the job within one tuning: each in its own folder, under limits, with its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aiak_tune.agent.records import SliceRecord
from aiak_tune.agent.spec import RunSpec, SlicePlan
from aiak_tune.optimizations.base import Optimization, Settings
from aiak_tune.optimizations.catalog import by_name
from aiak_tune.selector.breakdown import step_statistics
from aiak_tune.selector.diagnosis import Problem, diagnose
from aiak_tune.selector.folders import RunFolders
from aiak_tune.selector.launch import Limits, Outcome, Watch, launch
from aiak_tune.selector.leader import Leader
from aiak_tune.selector.measure import (
    samples_per_step,
    startup_s,
    throughput,
)
from aiak_tune.selector.progress import Progress
from aiak_tune.selector.ranks import aligned, slowest_of, window_of
from aiak_tune.selector.reporter import Reporter
from aiak_tune.selector.results import ProbeResult, Work
from aiak_tune.selector.side_effects import files_left
from aiak_tune.selector.variables import variables_of
from aiak_tune.selector.workdir import copy_workdir, in_copy, workdir

STARTUP_SLACK, STEP_SLACK = 10.0, 50.0
LEAST_START_S, LEAST_STALL_S = 180.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start that has ended: figures when `problem` is None."""

    settings: Settings
    outcome: Outcome
    problem: Problem | None
    run_dir: Path

    @property
    def records(self) -> tuple[SliceRecord, ...]:
        """The ranks' records, by rank."""
        return aligned(self.outcome.results)

    @property
    def rank(self) -> SliceRecord:
        """The slowest rank's record."""
        return slowest_of(self.records)

    @property
    def samples_per_s(self) -> float:
        """Samples a second over all ranks."""
        return throughput(self.records)

    @property
    def step_ms(self) -> float:
        """The mean step of the slowest rank."""
        return step_statistics(window_of(self.rank)).mean

    @property
    def startup_s(self) -> float | None:
        """Seconds before the first step."""
        return startup_s(self.rank)

    @property
    def effects(self) -> dict[str, str | None]:
        """What each setting did; None on any rank is None."""
        merged: dict[str, str | None] = {}
        for record in self.records:
            for name, text in record.effects.items():
                merged[name] = text if merged.get(name, text) else None
        return merged

    @property
    def work(self) -> Work:
        """The parity gate's evidence, from rank 0; the comparisons in the process from all."""
        record = self.records[0]
        window = window_of(record)
        probes = tuple(
            ProbeResult(what=p.what, error=p.error, yard=p.yard, problem=p.problem)
            for p in (probe for r in self.records for probe in r.probes)
        )
        return Work(
            losses=tuple(record.losses),
            late_losses=tuple(record.late_losses),
            batches=tuple(record.batch_hashes),
            samples_per_step=samples_per_step(record),
            updates=len(window.steps),
            updates_skipped=window.updates_skipped,
            moved=record.moved,
            probes=probes,
        )


class Starter:
    """Starts the command again and again; the limits follow what the first start took."""

    def __init__(
        self,
        command: Sequence[str],
        runs_dir: Path,
        reporter: Reporter,
        catalog: Sequence[Optimization],
        *,
        keep: bool = False,
        copied: Path | None = None,
        leader: Leader | None = None,
    ) -> None:
        """Start it where we are, or in a copy of `copied` (UsageError: it is too large).

        With a `leader` every start happens on all nodes.
        """
        self._leader = leader
        self._command, self._reporter = tuple(command), reporter
        self._workdir = None if copied is None else workdir(copied, runs_dir)
        if self._workdir is not None:
            reporter.note(self._workdir.text)
        self._catalog = {entry.name: entry for entry in catalog}
        self._folders = RunFolders(runs_dir, keep=keep)
        self.limits = Limits()
        self.durations: list[float] = []
        self.left: list[list[str]] = []  # by start: the files it left where the job says

    def start(
        self, what: str, settings: Settings, plan: SlicePlan, watch: Watch | None = None
    ) -> Start:
        """Run one slice with these settings; its folder is there until `forget`."""
        self._reporter.started(what, settings)
        run_dir = self._folders.new()
        environment = variables_of(settings, self._catalog)
        # Those of another catalog are variables and no more: the agent knows nothing of them.
        inside = {name: params for name, params in settings.items() if name in by_name}
        # Hash seeds differ between interpreters by default, and sets with them.
        environment.setdefault("PYTHONHASHSEED", "0")
        spec = RunSpec(run_dir=str(run_dir), settings=inside, slice=plan, environment=environment)

        def told(progress: Progress) -> str | None:
            self._reporter.progressed(progress, wanted=plan.steps)
            return watch(progress) if watch else None

        command, folder = self._command, None
        try:
            if self._workdir is not None:
                folder = copy_workdir(self._workdir, run_dir)
                command = in_copy(command, self._workdir, folder)
            run = launch
            if self._leader is not None:
                self._leader.tell(what, settings, plan, self.limits)
                run = self._leader.launch
            outcome = run(command, spec, limits=self.limits, watch=told, folder=folder)
        except BaseException:
            self._folders.remove(run_dir)
            raise
        self.durations.append(outcome.duration_s)
        self.left.append(files_left(run_dir))
        return Start(settings=settings, outcome=outcome, problem=diagnose(outcome), run_dir=run_dir)

    def learn(self, duration_s: float, step_ms: float) -> None:
        """Take the limits for a sign of life from the baseline: its start and its mean step."""
        self.durations = self.durations or [duration_s]  # a resumed tuning did not start it
        self.limits = replace(
            self.limits,
            first_step_s=max(LEAST_START_S, STARTUP_SLACK * duration_s),
            stall_s=max(LEAST_STALL_S, STEP_SLACK * step_ms / 1e3),
        )

    def forget(self, start: Start) -> None:
        """Remove the start's folder, traces and output with it."""
        self._folders.remove(start.run_dir)
