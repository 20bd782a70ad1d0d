"""What a running tuning has told so far, for both displays: state, estimate, and its texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from aiak_tune.cli import output
from aiak_tune.cli.sections import rate_of
from aiak_tune.optimizations.base import Settings
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import WorkloadProfile
from aiak_tune.selector.progress import Progress
from aiak_tune.selector.results import ConfirmationRun, FindingRecord, Trial
from aiak_tune.selector.unseen import seen_text

# The agent's words for where a start is, and ours for people.
PHASES = {
    "starting": "starting up",
    "warm-up": "warming up",
    "counting": "counting steps",
    "counted": "profiling",
    "probing": "comparing with the plain computation",
    "done": "ending",
}
PATIENCE_S = 30.0  # a first step that comes later makes people wonder


class Board:
    """The state of a tuning. `clock` gives seconds; `budget_s` is the user's `--time-budget`."""

    def __init__(self, clock: Callable[[], float], budget_s: float | None = None) -> None:
        self._clock = clock
        self._began = clock()
        self._budget_s = budget_s
        self._to_come: int | None = None
        self._told_s: float | None = None
        self._took_s: list[float] = []
        self._since: float | None = None
        self.starts = 0
        self.what = ""
        self.settings: Settings = {}
        self.progress = Progress()
        self.wanted = 0
        self.trials: tuple[Trial, ...] = ()
        self.baseline: float | None = None
        self.said = ""

    def cost(self, starts: int, seconds_each: float | None) -> None:
        """So many starts are to come."""
        self._to_come = starts
        self._told_s = seconds_each or self._told_s

    def started(self, what: str, settings: Settings) -> None:
        """Another start runs now."""
        self.ended()
        self.what, self.settings, self.progress = what, settings, Progress()
        self._since = self._clock()
        self.starts += 1
        if self._to_come:
            self._to_come -= 1

    def ended(self) -> None:
        """The start that ran is done."""
        if self._since is not None:
            self._took_s.append(self._clock() - self._since)
        self._since, self.what = None, ""

    def trial_ended(self, trial: Trial, baseline: float | None) -> None:
        """A trial has its outcome."""
        self.ended()
        self.trials = (*(t for t in self.trials if t.number != trial.number), trial)
        self.baseline = baseline or self.baseline

    @property
    def elapsed_s(self) -> float:
        """Seconds since the tuning began."""
        return self._clock() - self._began

    @property
    def running(self) -> bool:
        """Whether a start runs now."""
        return self._since is not None

    @property
    def left_s(self) -> float | None:
        """Seconds to come at most, None while nothing is known."""
        each = self._told_s
        if each is None and self._took_s:
            each = sum(self._took_s) / len(self._took_s)
        estimate = None
        if each is not None and self._to_come is not None:
            estimate = each * self._to_come
            if self._since is not None:
                estimate += max(0.0, each - (self._clock() - self._since))
        if self._budget_s is None:
            return estimate
        budget = max(0.0, self._budget_s - self.elapsed_s)
        return budget if estimate is None else min(budget, estimate)

    def waiting_text(self) -> str:
        """Say what a start is doing that has shown no step for long; empty where one has."""
        if self._since is None or self.progress.step or self.progress.phase != "starting":
            return ""
        if self._clock() - self._since < PATIENCE_S:
            return ""
        return f"starting up: {seen_text(self.progress.seen)}"

    @property
    def best(self) -> Trial | None:
        """The fastest trial with settings, if it beats the job as written."""
        tried = [t for t in self.trials if t.settings and t.state == "measured"]
        best = max(tried, key=lambda t: rate_of(t) or 0.0, default=None)
        faster = best is not None and (rate_of(best) or 0.0) > (self.baseline or 0.0)
        return best if faster else None

    def cost_text(self, starts: int, seconds_each: float | None) -> str:
        """Say what is to come, before it begins."""
        many = f"at most {starts} start{'' if starts == 1 else 's'} of the job"
        budget = "" if self._budget_s is None else output.duration(self._budget_s)
        limit = f"; --time-budget ends it after {budget}" if budget else ""
        if not seconds_each:
            return f"To come: {many}; the first shows how long one takes{limit}"
        each = output.duration(seconds_each)
        total = output.duration(starts * seconds_each)
        return f"To come: {many}, about {each} each: {total} in all{limit}"

    def relative(self, trial: Trial) -> float | None:
        """Return a trial's speed as a multiple of the job as written."""
        rate = rate_of(trial)
        return rate / self.baseline if rate and self.baseline else None


def profile_text(profile: WorkloadProfile) -> str:
    """Return `as written: 1,049 samples/s, 61.0 ms a step: 51% data_wait, 37% compute`."""
    steps = profile.steps
    rate = f"{output.number(steps.samples_per_s, 4)} samples/s, " if steps.samples_per_s else ""
    shares = {category: profile.share(category) for category in Category}
    told = [
        f"{share:.0%} {category.value}"
        for category, share in sorted(shares.items(), key=lambda item: -item[1])
        if share >= 0.005
    ]
    where = f" ({', '.join(told)})" if told else ""
    return f"as written: {rate}{output.number(steps.step_ms.mean)} ms a step{where}"


def fits_text(findings: Sequence[FindingRecord]) -> str:
    """Return `fits: data-workers (at most 2.05×), amp`."""
    fitting = sorted((f for f in findings if f.fits), key=lambda f: -(f.bound or 0))
    if not fitting:
        return "nothing in the catalog fits"
    told = (
        f.optimization + (f" (at most {output.ratio(f.bound)})" if f.bound else "") for f in fitting
    )
    return f"fits: {', '.join(told)}"


def result_text(trial: Trial, relative: float | None) -> str:
    """Return a trial's outcome: its speed, or why it has none."""
    rate = rate_of(trial)
    speed = "" if rate is None else f"{output.number(rate, 4)} samples/s"
    if rate is not None and relative is not None and trial.settings:
        speed += f", {output.ratio(relative)} as written"
    if trial.state == "measured":
        return speed + (f"; {trial.reason}" if trial.reason else "")
    return f"{trial.state} ({trial.reason_code}): {trial.reason}" + (f"; {speed}" if speed else "")


def confirmed_text(runs: Sequence[ConfirmationRun], said: str) -> str:
    """Return the last pair's figures and what the test says now."""
    # Not by the number alone: a second candidate's pairs are numbered anew.
    pair = [*takewhile(lambda run: run.pair == runs[-1].pair, reversed(runs))][::-1]
    figures = ", ".join(
        f"{run.side.replace('_', ' ')} {run.problem or output.number(run.samples_per_s, 4)}"
        for run in pair
    )
    return f"{figures} samples/s; {said}" if figures else said


def phase_text(progress: Progress) -> str:
    """Return what the start does now."""
    return PHASES.get(progress.phase, progress.phase)
