"""The confirmation: winner and baseline in turn, in fresh processes, until the ratio is clear."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from aiak_tune.agent.spec import SlicePlan
from aiak_tune.optimizations.base import Numerics, Optimization, Settings, Stage
from aiak_tune.profiles.workload import WorkloadProfile
from aiak_tune.selector.judging import failure_of
from aiak_tune.selector.lossband import ULP
from aiak_tune.selector.parity import parity
from aiak_tune.selector.reporter import Reporter
from aiak_tune.selector.results import ConfirmationRun, Measured, Parity, Winner, Work
from aiak_tune.selector.sequential import Decision, judge, order
from aiak_tune.selector.starts import Starter

Side = Literal["baseline", "best", "best_lossless"]
Save = Callable[[Sequence[ConfirmationRun]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Settings that are to be confirmed."""

    side: Literal["best", "best_lossless"]
    settings: Settings
    numerics: Numerics
    probed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """How one contender came out; `winner` only when it is faster and the gate is open."""

    contender: Contender
    decision: Decision | None
    parity: Parity | None
    winner: Winner | None
    problem: str | None = None


def numerics_of(
    settings: Settings, catalog: Mapping[str, Optimization], profile: WorkloadProfile
) -> Numerics:
    """Return the furthest class of the settings' entries; lossless for none."""
    classes = [catalog[name].numerics(profile, params) for name, params in settings.items()]
    return max(classes, key=lambda n: n.reach, default=Numerics.LOSSLESS)


def is_probed(
    settings: Settings, catalog: Mapping[str, Optimization], profile: WorkloadProfile
) -> bool:
    """Whether the settings change a computation that the agent can compare in the process."""
    return any(
        catalog[name].stage in (Stage.MODEL, Stage.OPTIMIZER)
        or catalog[name].numerics(profile, params) is Numerics.CHANGING
        for name, params in settings.items()
    )


class Confirmation:
    """Runs the pairs; `runs` is what has been run so far, and what a resumed tuning starts from."""

    def __init__(
        self,
        starter: Starter,
        reporter: Reporter,
        plan: SlicePlan,
        baseline: Measured,
        *,
        pairs: tuple[int, int],
        save: Save,
        affordable: Callable[[], bool],
    ) -> None:
        self._starter, self._reporter, self._plan = starter, reporter, plan
        self._baseline, self._save = baseline, save
        self._least, self._most = pairs
        self._affordable = affordable
        self.runs: list[ConfirmationRun] = []

    def confirm(self, contenders: Sequence[Contender]) -> list[Confirmed]:
        """Run pairs until every contender is decided or the budget ends.

        The disturbance of the baseline's runs takes turns between the contenders' precisions, so
        that each has a band of its own.
        """
        open_ones = list(contenders)
        for pair in range(self._most):
            if not open_ones or (pair >= self._least and not self._affordable()):
                break
            numerics = contenders[pair % len(contenders)].numerics
            sides: list[Side] = []
            for which in order(pair):
                sides += ["baseline"] if which == "baseline" else [c.side for c in open_ones]
            for side in sides:
                self._run(pair, side, contenders, numerics)
            said = [self._decide(c) for c in contenders]
            self._reporter.confirmed(self.runs, said[0].reason if said[0] else "first pairs")
            open_ones = [c for c in open_ones if self._undecided(c)]
        return [self._conclude(c) for c in contenders]

    def _run(
        self, pair: int, side: Side, contenders: Sequence[Contender], numerics: Numerics
    ) -> None:
        settings = next((c.settings for c in contenders if c.side == side), {})
        if any(r.pair == pair and r.side == side and r.settings == settings for r in self.runs):
            return  # a resumed tuning has it already
        disturb = ULP[numerics] if side == "baseline" else 0.0
        plan = replace(self._plan, disturb=disturb, disturb_seed=pair + 1, probe=side != "baseline")
        number = len(self.runs) + 1
        start = self._starter.start(f"confirmation run {number}: {side}", settings, plan)
        code, why = failure_of(start, self._baseline.work)
        good = code is None
        self.runs.append(
            ConfirmationRun(
                pair=pair,
                side=side,
                settings=settings,
                samples_per_s=start.samples_per_s if good else None,
                step_ms=start.step_ms if good else None,
                duration_s=start.outcome.duration_s,
                startup_s=start.startup_s if good else None,
                memory_bytes=start.rank.memory_bytes if good else None,
                work=start.work if good else Work(),
                problem=None if good else f"{code}: {why}",
                disturbed=disturb,
            )
        )
        self._starter.forget(start)
        self._save(self.runs)

    def _side(self, side: Side, settings: Settings) -> list[ConfirmationRun]:
        return [r for r in self.runs if r.side == side and r.settings == settings]

    def _pairs(self, contender: Contender) -> tuple[list[float], list[float]]:
        mine = {r.pair: r.samples_per_s for r in self._side(contender.side, contender.settings)}
        plain = {r.pair: r.samples_per_s for r in self._side("baseline", {})}
        both = [p for p in sorted(mine) if mine[p] and plain.get(p)]
        return [plain[p] or 0.0 for p in both], [mine[p] or 0.0 for p in both]

    def _decide(self, contender: Contender) -> Decision | None:
        baseline, candidate = self._pairs(contender)
        if not candidate:
            return None
        return judge(baseline, candidate, min_pairs=self._least, max_pairs=self._most)

    def _problem(self, contender: Contender) -> str | None:
        runs = self._side(contender.side, contender.settings) + self._side("baseline", {})
        return next((r.problem for r in runs if r.problem), None)

    def _undecided(self, contender: Contender) -> bool:
        if self._problem(contender):
            return False
        decision = self._decide(contender)
        return decision is None or decision.decision == "continue"

    def _conclude(self, contender: Contender) -> Confirmed:
        decision, problem = self._decide(contender), self._problem(contender)
        runs = self._side(contender.side, contender.settings)
        judged = None
        if problem is None and runs:
            disturbed = [
                r.work for r in self._side("baseline", {}) if r.disturbed == ULP[contender.numerics]
            ]
            changed = [r.work for r in runs]
            judged = parity(
                self._baseline.work,
                disturbed,
                changed,
                probed=contender.probed,
                ulp=ULP[contender.numerics],
            )
        winner = None
        if judged and judged.passed and decision and decision.decision == "faster":
            winner = self._winner(contender, decision, judged, runs)
        return Confirmed(
            contender=contender, decision=decision, parity=judged, winner=winner, problem=problem
        )

    def _winner(
        self,
        contender: Contender,
        decision: Decision,
        judged: Parity,
        runs: Sequence[ConfirmationRun],
    ) -> Winner:
        plain = self._side("baseline", {})
        step, plain_step = _mean([r.step_ms for r in runs]), _mean([r.step_ms for r in plain])
        mine, theirs = _mean([r.startup_s for r in runs]), _mean([r.startup_s for r in plain])
        added = None if mine is None or theirs is None else mine - theirs
        steps = None
        if added is not None and step and plain_step and plain_step > step:
            steps = max(0, round(added * 1e3 / (plain_step - step)))
        memory = [r.memory_bytes for r in runs if r.memory_bytes is not None]
        return Winner(
            settings=contender.settings,
            speedup=decision.speedup,
            ci95=decision.ci95 or (decision.speedup, decision.speedup),
            samples_per_s=_mean([r.samples_per_s for r in runs]) or 0.0,
            step_ms=step or 0.0,
            numerics=contender.numerics,
            parity=judged,
            startup_added_s=added,
            break_even_steps=steps,
            memory_bytes=max(memory, default=None),
        )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
