"""The parts of a tuning or a profile as they are printed: tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType

from aiak_tune.cli import output
from aiak_tune.cli.messages import readable
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import Warn, WorkloadProfile
from aiak_tune.selector.results import (
    Failed,
    FindingRecord,
    Measured,
    Parity,
    Pruned,
    Trial,
    TuningResult,
    Winner,
)

EVEN = 1.1  # ranks whose own work differs by less are not told apart by a few profiled steps


def steps_text(profile: WorkloadProfile) -> str:
    """Return the step statistics in one line."""
    steps, ms = profile.steps, profile.steps.step_ms
    rate = "samples per second unknown"
    if steps.samples_per_s is not None:
        rate = f"{output.number(steps.samples_per_s, 4)} samples/s"
    return (
        f"{rate}; a step takes {output.number(ms.mean)} ms (mean; median "
        f"{output.number(ms.median)}, p05–p95 {output.number(ms.p05)}–{output.number(ms.p95)}), "
        f"over {steps.counted} counted steps after {steps.warmup} of warm-up"
    )


def ranks_table(profile: WorkloadProfile) -> Iterator[RenderableType]:
    """Return a line for each rank of several; the slowest is named, and what it costs."""
    ranks = profile.ranks
    if len(ranks) < 2:
        return
    each = [category.value for category in Category]
    made = output.table("rank", "step ms", *each, "waits ms", title="Ranks")
    for column in made.columns:
        column.justify = "right"
    for rank in ranks:
        shares = [
            output.NOTHING
            if rank.breakdown_ms is None
            else f"{rank.breakdown_ms.get(category, 0.0) / rank.step_ms:.0%}"
            for category in Category
        ]
        made.add_row(
            str(rank.rank),
            output.number(rank.step_ms),
            *shares,
            output.number(rank.comm_waiting_ms),
            style="bold" if rank.rank == profile.slowest_rank else "",
        )
    yield made
    yield output.plain(_slowest_text(profile))


def _slowest_text(profile: WorkloadProfile) -> str:
    waits = {r.rank: r.comm_waiting_ms for r in profile.ranks}
    shown = f"the figures above are those of rank {profile.slowest_rank}"
    known = {rank: ms for rank, ms in waits.items() if ms is not None}
    if len(known) < len(waits):
        return f"{shown}; how long ranks wait for each other is not known"
    own = [rank.step_ms - known[rank.rank] for rank in profile.ranks]
    if max(own) < EVEN * min(own):
        return f"the ranks are about equally fast; {shown}"
    longest = output.number(max(known.values()))
    return f"rank {profile.slowest_rank} is the slowest, others wait {longest} ms a step; {shown}"


def findings_table(findings: Iterable[FindingRecord], title: str) -> RenderableType:
    """Return what fits, the most promising first, and why the rest does not."""
    made = output.table("optimization", "fits", "at most", "why", title=title)
    for finding in sorted(findings, key=lambda f: (not f.fits, -(f.bound or 0))):
        made.add_row(
            output.plain(finding.optimization),
            "yes" if finding.fits else "no",
            output.ratio(finding.bound),
            output.plain(finding.reason),
        )
    return made


def trials_table(tuning: TuningResult) -> RenderableType:
    """Return every trial with its outcome and the reason for it."""
    made = output.table("#", "settings", "samples/s", "× base", "outcome", title="Trials")
    made.columns[2].justify = made.columns[3].justify = "right"
    made.columns[2].no_wrap = made.columns[3].no_wrap = True
    base = baseline_rate(tuning)
    won = [winner.settings for winner in (tuning.best, tuning.best_lossless) if winner]
    for trial in tuning.trials:
        rate = rate_of(trial)
        made.add_row(
            str(trial.number),
            output.plain(output.settings_text(trial.settings)),
            output.number(rate, 4),
            output.NOTHING if not (rate and base) else output.ratio(rate / base),
            output.plain(outcome(trial) + (", confirmed" if trial.settings in won else "")),
            style="bold" if trial.settings in won else "",
        )
    return made


def baseline_rate(tuning: TuningResult) -> float | None:
    """Return samples per second of the job as written, in the trial that the others ran beside."""
    rates = [rate_of(trial) for trial in tuning.trials if not trial.settings]
    known = [*rates, None if tuning.baseline is None else tuning.baseline.samples_per_s]
    return next((rate for rate in known if rate), None)


def rate_of(trial: Trial) -> float | None:
    """Return a trial's samples per second, None where it has none."""
    return trial.samples_per_s if isinstance(trial, Measured | Pruned) else None


def outcome(trial: Trial) -> str:
    """Return `measured`, or `failed (out_of_memory): why`."""
    code = f" ({trial.reason_code})" if trial.reason_code else ""
    return f"{trial.state}{code}" + (f": {trial.reason}" if trial.reason else "")


def confirmation_table(tuning: TuningResult) -> RenderableType:
    """Return every run that the speed-up comes from."""
    made = output.table("pair", "side", "samples/s", "step ms", "", title="Confirmation")
    made.columns[2].justify = made.columns[3].justify = "right"
    for run_ in tuning.confirmation:
        made.add_row(
            str(run_.pair),
            run_.side,
            output.number(run_.samples_per_s, 4),
            output.number(run_.step_ms),
            output.plain(run_.problem or ""),
        )
    return made


def winners(tuning: TuningResult) -> Iterator[RenderableType]:
    """Return a table for the best, and one for the best lossless settings if they are others."""
    best, lossless = tuning.best, tuning.best_lossless
    if best is not None:
        yield _winner("best", best)
    if lossless is not None and (best is None or lossless.settings != best.settings):
        yield _winner("best lossless", lossless)


def _winner(title: str, winner: Winner) -> RenderableType:
    gain = f"{output.ratio(winner.speedup)} ({output.interval(winner.ci95)})"
    made = output.table(title, f"{gain}, {winner.numerics.value}")
    for name, params in winner.settings.items():
        made.add_row(output.plain(name), output.plain(output.params_text(params)))
    step = f"{output.number(winner.step_ms)} ms"
    made.add_row("speed", f"{output.number(winner.samples_per_s, 4)} samples/s, {step} a step")
    made.add_row("losses", output.plain(_parity(winner.parity)))
    made.add_row("memory", output.size(winner.memory_bytes))
    made.add_row("start-up", _cost(winner))
    return made


def _parity(parity: Parity) -> str:
    if not parity.passed:
        return f"not passed: {parity.reason or 'no reason was recorded'}"
    evidence = f"{parity.steps} steps, {parity.baseline_runs} runs as written"
    if parity.delta is None or parity.band is None:
        return f"passed: {parity.metric} ({evidence})"
    found, allowed = output.number(parity.delta), output.number(parity.band)
    return f"passed: {parity.metric} is {found}, allowed {allowed} ({evidence})"


def _cost(winner: Winner) -> str:
    added = winner.startup_added_s
    if added is None:
        return "not measured"
    if added <= 0:
        return "no longer than as written"
    after = winner.break_even_steps
    paid = "" if after is None else f", paid back after {after:,} steps"
    return f"{output.number(added)} s longer{paid}"


def notes(*warnings: Sequence[Warn]) -> Iterator[RenderableType]:
    """Return a line for each warning, none twice."""
    for warning in dict.fromkeys(w for some in warnings for w in some):
        yield output.plain(f"note ({warning.code}): {warning.text}", style="yellow")


def unfit_table(findings: Iterable[FindingRecord]) -> RenderableType:
    """Return what was not tried, and why."""
    made = output.table("optimization", "why not", title="Not tried")
    for finding in findings:
        made.add_row(output.plain(finding.optimization), output.plain(finding.reason))
    return made


def last_words(tuning: TuningResult) -> Iterator[RenderableType]:
    """Return the job's own last lines, of the first start that failed and kept them."""
    tails = [t.log_tail for t in tuning.trials if isinstance(t, Failed) and t.log_tail]
    for line in readable(tails[0]) if tails else ():
        yield output.plain(f"  {line}")
