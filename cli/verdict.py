"""A tuning's verdict in a sentence, and the command that comes next."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from aiak_tune.cli.messages import clean
from aiak_tune.cli.options import PLAN_FILE
from aiak_tune.cli.output import interval, ratio, settings_names
from aiak_tune.selector.results import TuningResult

NAME = "aiak-tune"


def verdict_sentence(tuning: TuningResult) -> str:
    """Say what a tuning found."""
    trials = f"{len(tuning.trials)} trial{'' if len(tuning.trials) == 1 else 's'}"
    reason = f" ({clean(tuning.verdict_reason)})" if tuning.verdict_reason else ""
    match tuning.verdict:
        case "faster" if tuning.best is not None:
            best = tuning.best
            return (
                f"Faster: {ratio(best.speedup)} the speed of the job as written (95% interval "
                f"{interval(best.ci95)}) with {settings_names(best.settings)}; "
                f"numerics: {best.numerics.value}."
            )
        case "no_change":
            gain = tuning.smallest_visible_gain
            seen = "" if gain is None else f"; a gain of {gain - 1:.1%} would have been seen"
            return f"Nothing beat the job as written{seen}{reason}."
        case "interrupted":
            return f"Interrupted after {trials}{reason}; what was measured is kept."
        case "running":
            return f"Running, or killed, with {trials} so far."
        case _:
            why = clean(tuning.verdict_reason or "no reason was recorded")
            return f"The tuning failed: {why.rstrip('.')}."


def next_step(tuning: TuningResult, *, plan: str = str(PLAN_FILE)) -> str:
    """Say what to do after the verdict, with the command to copy."""
    command = job_words(tuning.job.command)
    nodes = tuning.environment.nodes
    where = "" if nodes == 1 else ", on each node"
    meet = "" if nodes == 1 else " --rendezvous HOST:PORT"
    resume = f"{program()} tune{meet} --resume {clean(tuning.id)} -- {command}"
    match tuning.verdict:
        case "faster" if tuning.best is not None:
            return f"Next{where}: {program()} run --plan {clean(shlex.quote(plan))} -- {command}"
        case "no_change":
            return f"Next: run it as it is: {command}"
        case "interrupted":
            return f"Next, to go on{where}: {resume}"
        case "running":
            return f"Next, if it was killed{where}: {resume}"
        case _:
            return f"Next, when that is mended: {program()} tune{meet} -- {command}"


def program() -> str:
    """Return the command as the user can type it again: its path where PATH does not have it."""
    if shutil.which(NAME) is None and Path(sys.argv[0]).name == NAME:
        return clean(shlex.quote(sys.argv[0]))
    return NAME


def job_words(command: Sequence[str]) -> str:
    """Return the training command as a shell would take it."""
    return clean(shlex.join(command))
