"""One tuning from its first start to its verdict; resumes from whatever was already stored."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from aiak_tune.agent.spec import SlicePlan
from aiak_tune.errors import JobError
from aiak_tune.optimizations.base import Optimization, Settings, Space
from aiak_tune.profiles.workload import WorkloadProfile
from aiak_tune.selector.confirmation import (
    Confirmation,
    Confirmed,
    Contender,
    is_probed,
    numerics_of,
)
from aiak_tune.selector.judging import PRUNED, trial_of
from aiak_tune.selector.measure import profile_of, step_times_ms
from aiak_tune.selector.profile_job import find, records
from aiak_tune.selector.progress import Progress
from aiak_tune.selector.quantiles import t_quantile
from aiak_tune.selector.ranks import slowest_view, views_of
from aiak_tune.selector.reporter import Reporter
from aiak_tune.selector.request import Request
from aiak_tune.selector.results import (
    Baseline,
    ConfirmationRun,
    Failed,
    Measured,
    Trial,
    TuningResult,
    TuningStore,
)
from aiak_tune.selector.starts import Start, Starter
from aiak_tune.selector.study import Study, StudyTrial
from aiak_tune.selector.windows import clearly_slower

TIE = 0.98  # a simpler setting this near to the best is taken for as good
SEARCH_WARMUP, SEARCH_PROFILED = 5, 3
TRIES = 2  # how many candidates are confirmed before a tuning ends with no change


class Campaign:
    """`run` goes from what `tuning` holds to a verdict; `tuning` is always what is known."""

    def __init__(
        self,
        request: Request,
        store: TuningStore,
        reporter: Reporter,
        catalog: Sequence[Optimization],
        starter: Starter,
        tuning: TuningResult,
    ) -> None:
        self._request, self._store, self._reporter = request, store, reporter
        self._catalog = {entry.name: entry for entry in catalog}
        self._starter = starter
        self._began = time.monotonic()
        # By the reach of the numerics class: lossless settings race with lossless ones alone, so
        # that the best of them is known beside a faster one that changes numerics.
        self._best_steps: dict[int, tuple[float, ...]] = {}
        self.tuning = tuning

    def run(self) -> TuningResult:
        """Return the finished tuning.

        Raises:
            JobError: the baseline gave no figure.
        """
        request = self._request
        self._reporter.cost(starts=request.trials + 2 * request.max_pairs, seconds_each=None)
        self._keep()
        baseline, profile = self._baseline()
        found = find(profile, list(self._catalog.values()))
        space = {
            name: finding.space or entry.space
            for name, (entry, finding) in found.items()
            if finding.fits
        }
        self._change(findings=records(found))
        self._reporter.profiled(profile, records(found))
        starts = min(request.trials, 1 + _sizes(space)) + (2 * request.max_pairs if space else 0)
        self._reporter.cost(starts=starts - 1, seconds_each=median(self._starter.durations or [0]))
        if not space:
            return self._no_change("nothing in the catalog fits this job", baseline, [])
        self._search(space, baseline, profile)
        return self._verdict(baseline, profile)

    # The baseline.

    def _baseline(self) -> tuple[Measured, WorkloadProfile]:
        first = next((t for t in self.tuning.trials if not t.settings), None)
        if isinstance(first, Measured) and self.tuning.profile is not None:
            self._reporter.note(f"going on with tuning {self.tuning.id}")
            self._starter.learn(first.duration_s, first.step_ms)
            return first, self.tuning.profile
        start = self._starter.start("baseline", {}, self._request.slice)
        try:
            if start.problem is not None:
                failed = trial_of(0, start, plain=None, breakdown=None, keep_log=True)
                self._change(trials=(failed,))
                raise JobError(start.problem.advice, tail=start.problem.tail)
            profile = profile_of(start.records, start.run_dir, self.tuning.job, self._request.slice)
            trial = trial_of(
                0, start, plain=None, breakdown=profile.breakdown_ms,
                keep_log=self._request.keep_logs,
            )  # fmt: skip
        finally:
            self._starter.forget(start)
        if not isinstance(trial, Measured):
            self._change(trials=(trial,))
            raise JobError(f"the job as written is no baseline: {trial.reason}")
        self._starter.learn(trial.duration_s, trial.step_ms)
        self._best_steps[0] = step_times_ms(start.rank)
        self._change(
            trials=(trial,),
            job=profile.job,
            environment=profile.environment,
            profile=profile,
            baseline=_baseline_of([trial], []),
        )
        self._reporter.trial_ended(trial, baseline=trial.samples_per_s)
        return trial, profile

    # The search.

    def _search(
        self,
        space: Mapping[str, Space],
        baseline: Measured,
        profile: WorkloadProfile,
    ) -> None:
        conflicts = {name: self._catalog[name].conflicts for name in space}
        study = Study(space, conflicts, self._request.seed)
        study.replay(_told(t) for t in self.tuning.trials)
        while len(self.tuning.trials) < self._request.trials and self._affordable(reserve=True):
            settings = study.ask()
            if settings is None:
                return
            if numerics_of(settings, self._catalog, profile).reach > self._request.numerics.reach:
                study.tell(settings, None, failed=True)
                continue
            trial = self._trial(settings, baseline, profile)
            told = _told(trial)
            study.tell(told.settings, told.value, told.failed)
            self._change(trials=(*self.tuning.trials, trial))
            self._reporter.trial_ended(trial, baseline=baseline.samples_per_s)

    def _trial(self, settings: Settings, baseline: Measured, profile: WorkloadProfile) -> Trial:
        number = len(self.tuning.trials)
        plan = replace(
            self._request.slice,
            parity=0,
            warmup=min(SEARCH_WARMUP, self._request.slice.warmup),
            profiled=min(SEARCH_PROFILED, self._request.slice.profiled),
        )
        what = f"trial {number} of at most {self._request.trials - 1}"
        reach = numerics_of(settings, self._catalog, profile).reach
        start = self._starter.start(what, settings, plan, lambda told: self._loses(told, reach))
        try:
            breakdown = None
            if start.problem is None:
                found = slowest_view(views_of(start.records, start.run_dir)).found
                breakdown = None if found is None else found.breakdown_ms
                self._remember(start, reach)
            return trial_of(
                number, start, plain=baseline.work, breakdown=breakdown,
                keep_log=self._request.keep_logs,
            )  # fmt: skip
        finally:
            self._starter.forget(start)

    def _best_of(self, reach: int) -> tuple[float, ...]:
        """Return the steps of the fastest start whose settings reach no further; () for none."""
        known = [steps for r, steps in self._best_steps.items() if r <= reach]
        return min(known, key=median, default=())

    def _loses(self, progress: Progress, reach: int) -> str | None:
        """End a clear loser early; the baseline's own forced runs are never ended."""
        best = self._best_of(reach)
        if not (best and progress.steps_ms) or self._request.force_confirmation:
            return None
        if not clearly_slower(progress.steps_ms, best):
            return None
        slow = median(progress.steps_ms) / median(best) - 1
        return f"{PRUNED}: after {len(progress.steps_ms)} steps {slow:.0%} behind the best so far"

    def _remember(self, start: Start, reach: int) -> None:
        steps, best = step_times_ms(start.rank), self._best_steps.get(reach)
        if best is None or median(steps) < median(best):
            self._best_steps[reach] = steps

    def _affordable(self, *, reserve: bool = False) -> bool:
        """Whether another start fits in the time budget, with the confirmation's kept free."""
        budget = self._request.time_budget_s
        if budget is None:
            return True
        each = median(self._starter.durations or [0.0])
        starts = 1 + (2 * self._request.min_pairs if reserve else 1)
        spent = (self.tuning.duration_s or 0.0) + time.monotonic() - self._began
        return spent + starts * each <= budget

    # The verdict.

    def _verdict(self, baseline: Measured, profile: WorkloadProfile) -> TuningResult:
        ranked = self._ranked(profile)
        if len(self.tuning.trials) < 2:
            return self._out_of_time(baseline)
        if not ranked:
            return self._no_change("no trial gave a figure", baseline, [])
        faster = [t for t in ranked if t.samples_per_s > baseline.samples_per_s]
        tried: list[Confirmed] = []
        for candidate in (faster or ranked[:1])[:TRIES]:
            outcomes = self._confirm(candidate, ranked, baseline, profile)
            tried += outcomes
            won = [o.winner for o in outcomes if o.winner is not None]
            if won:
                best = won[0]
                lossless = next((w for w in won if w.numerics.reach == 0), None)
                return self._finish("faster", None, baseline, best=best, best_lossless=lossless)
            if outcomes[0].decision and outcomes[0].decision.decision != "faster":
                break  # it was not the gate: what was slower in its trial will not do better
        return self._no_change(_why(tried), baseline, tried)

    def _out_of_time(self, baseline: Measured) -> TuningResult:
        each = median(self._starter.durations or [baseline.duration_s])
        needed = (2 + 2 * self._request.min_pairs) * each
        reason = (
            f"the time budget left no room for a trial: at {each:.0f} s a start, one trial and its "
            f"confirmation want about {needed:.0f} s; go on with --resume and more --time-budget"
        )
        return self._finish("interrupted", reason, baseline)

    def _ranked(self, profile: WorkloadProfile) -> list[Measured]:
        """Return the trials, the best first; of those within 2% of the best the simplest first."""
        trials = [t for t in self.tuning.trials if isinstance(t, Measured) and t.settings]
        trials.sort(key=lambda t: -t.samples_per_s)
        if not trials:
            return []
        top = trials[0].samples_per_s
        tied = [t for t in trials if t.samples_per_s >= TIE * top]
        tied.sort(
            key=lambda t: (
                numerics_of(t.settings, self._catalog, profile).reach,
                len(t.settings),
                -t.samples_per_s,
            )
        )
        return tied + [t for t in trials if t not in tied]

    def _confirm(
        self,
        candidate: Measured,
        ranked: Sequence[Measured],
        baseline: Measured,
        profile: WorkloadProfile,
    ) -> list[Confirmed]:
        contenders = [self._contender("best", candidate, profile)]
        if contenders[0].numerics.reach:
            lossless = next(
                (
                    t
                    for t in ranked
                    if t.samples_per_s > baseline.samples_per_s
                    and not numerics_of(t.settings, self._catalog, profile).reach
                ),
                None,
            )
            if lossless is not None:
                contenders.append(self._contender("best_lossless", lossless, profile))
        confirmation = Confirmation(
            self._starter,
            self._reporter,
            self._confirmation_plan(candidate),
            baseline,
            pairs=(self._request.min_pairs, self._request.max_pairs),
            save=lambda runs: self._change(confirmation=tuple(runs)),
            affordable=self._affordable,
        )
        confirmation.runs = list(self.tuning.confirmation)
        return confirmation.confirm(contenders)

    def _contender(self, side: str, trial: Measured, profile: WorkloadProfile) -> Contender:
        return Contender(
            side=side,  # type: ignore[arg-type]
            settings=trial.settings,
            numerics=numerics_of(trial.settings, self._catalog, profile),
            probed=is_probed(trial.settings, self._catalog, profile),
        )

    def _confirmation_plan(self, candidate: Measured) -> SlicePlan:
        """The same number of steps on both sides, enough for the faster one's window."""
        plan = self._request.slice
        steps = max(plan.steps, math.ceil(plan.min_window_s * 1e3 / candidate.step_ms))
        return replace(plan, steps=steps, min_window_s=0.0, profiled=0)

    def _no_change(
        self, reason: str, baseline: Measured, tried: Sequence[Confirmed]
    ) -> TuningResult:
        seen = [
            o.decision.smallest_visible_gain
            for o in tried
            if o.decision and o.decision.smallest_visible_gain is not None
        ]
        return self._finish(
            "no_change", reason, baseline, smallest_visible_gain=min(seen, default=None)
        )

    def _finish(
        self, verdict: str, reason: str | None, baseline: Measured, **found: object
    ) -> TuningResult:
        runs = [r for r in self.tuning.confirmation if r.side == "baseline"]
        self._change(
            verdict=verdict, verdict_reason=reason, baseline=_baseline_of([baseline], runs), **found
        )
        return self.tuning

    def _change(self, **changes: object) -> None:
        self.tuning = replace(self.tuning, **changes)  # type: ignore[arg-type]
        self._keep()

    def _keep(self) -> None:
        self._store.save(self.tuning)


def _told(trial: Trial) -> StudyTrial:
    if isinstance(trial, Measured):
        return StudyTrial(settings=trial.settings, value=trial.samples_per_s)
    # A clear loser teaches as a slow one; what crashed is not asked again in company.
    return StudyTrial(
        settings=trial.settings, value=None if isinstance(trial, Failed) else 0.0,
        failed=isinstance(trial, Failed),
    )  # fmt: skip


def _why(tried: Sequence[Confirmed]) -> str:
    first = tried[0]
    if first.problem:
        return f"the best settings failed in the confirmation: {first.problem}"
    if first.decision and first.decision.decision == "faster" and first.parity:
        return f"the fastest settings change the training: {first.parity.reason}"
    return first.decision.reason if first.decision else "the confirmation was not run"


def _baseline_of(trials: Sequence[Measured], runs: Sequence[ConfirmationRun]) -> Baseline:
    rates = [t.samples_per_s for t in trials] + [r.samples_per_s for r in runs if r.samples_per_s]
    steps = [t.step_ms for t in trials] + [r.step_ms for r in runs if r.step_ms]
    logs = [math.log(r) for r in rates]
    middle = sum(logs) / len(logs)
    ci95 = None
    if len(logs) > 1:
        spread = math.sqrt(sum((x - middle) ** 2 for x in logs) / (len(logs) - 1) / len(logs))
        reach = t_quantile(0.975, len(logs) - 1) * spread
        ci95 = (math.exp(middle - reach), math.exp(middle + reach))
    return Baseline(
        samples_per_s=math.exp(middle), ci95=ci95, step_ms=sum(steps) / len(steps), runs=len(rates)
    )


def _sizes(space: Mapping[str, Space]) -> int:
    """How many settings there are at most, to say no larger cost than there can be."""
    total = 1
    for params in space.values():
        values = math.prod(len(v) for v in params.values())
        total *= 1 + values
    return total - 1
