"""`aiak-tune tune`: profile, search, confirm; then the verdict, and a plan if there is a gain."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from aiak_tune.cli.nodes import CODES, add_node_options, follow_node_0, rendezvous_asked
from aiak_tune.cli.options import (
    PLAN_FILE,
    Verbs,
    add_job_verb,
    add_json_option,
    add_slice_options,
    at_least,
    names,
    seconds,
    slice_of,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aiak_tune.selector.request import Request
    from aiak_tune.selector.results import TuningResult

CLASSES = ("lossless", "changing", "convergence")


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    verb = add_job_verb(
        verbs,
        "tune",
        help="find and prove the settings that make the job faster",
        description="Profile the job, try what fits in real starts of it, and prove the best "
        "against the job as written. Trials switch trackers off, but the job's own code runs "
        "where you start it: checkpoints apart, what it writes, it writes there "
        "(--workdir-copy: in a copy).",
    )
    verb.add_argument(
        "--plan", type=Path, default=PLAN_FILE, metavar="FILE",
        help=f"the plan, written if there is a gain ({PLAN_FILE})",
    )  # fmt: skip
    _add_limits(verb)
    _add_choices(verb)
    add_slice_options(verb)
    add_node_options(verb)
    verb.add_argument("--keep-logs", action="store_true", help="store failed trials' last lines")
    verb.add_argument(
        "--no-wait", action="store_true", help="fail if another tuning runs here, do not wait"
    )
    add_json_option(verb)
    verb.set_defaults(run=run, stoppable=True)


def _add_limits(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--trials", type=at_least(2), metavar="N", help="at most so many, the baseline counts (10)"
    )
    verb.add_argument(
        "--time-budget", type=seconds, metavar="TIME", help="end after so long: 90s, 10m, 1h30m"
    )
    verb.add_argument(
        "--numerics", choices=CLASSES, default="changing",
        help="the furthest class allowed (changing): lossless: same mathematics; changing: lower "
        "precision; convergence: other mathematics of training",
    )  # fmt: skip


def _add_choices(verb: argparse.ArgumentParser) -> None:
    for option, help_ in (("--only", "try nothing else"), ("--exclude", "do not try it")):
        verb.add_argument(
            option,
            type=names,
            action="extend",
            default=[],
            metavar="NAME",
            help=f"{help_}; several: a,b",
        )
    verb.add_argument(
        "--resume", nargs="?", const="", metavar="ID",
        help="go on with a tuning; without an ID with this job's last unfinished one",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Tune, write the plan, print the result; on a node that is not node 0, do as that says."""
    from aiak_tune.api.store import open_store
    from aiak_tune.api.store.documents import tuning_document
    from aiak_tune.cli.files import check_targets
    from aiak_tune.cli.output import emit
    from aiak_tune.cli.progress import reporting
    from aiak_tune.selector.redaction import redact_tuning
    from aiak_tune.selector.tune import tune

    check_targets(args.plan, args.json)
    request = request_of(args)
    if request.rendezvous is not None and request.rendezvous.node:
        return follow_node_0(request, args)
    with open_store() as store, reporting(args.command, budget_s=args.time_budget) as reporter:
        tuning = redact_tuning(tune(request, store=store, reporter=reporter))
    unwritten = write_plan(tuning, args.plan)
    emit(screen(tuning, args.plan, unwritten), tuning_document(tuning), json=args.json)
    return 1 if unwritten else CODES.get(tuning.verdict, 1)


def request_of(args: argparse.Namespace) -> Request:
    """Return what was asked for."""
    from dataclasses import replace

    from aiak_tune.errors import UsageError
    from aiak_tune.optimizations.base import Numerics
    from aiak_tune.selector.request import Request

    asked = Request(
        command=args.command,
        time_budget_s=args.time_budget,
        numerics=Numerics(args.numerics),
        only=tuple(args.only),
        exclude=tuple(args.exclude),
        slice=slice_of(args),
        keep_logs=args.keep_logs,
        resume=args.resume is not None,
        resume_id=args.resume or None,
        wait=not args.no_wait,
        workdir_copy=args.workdir_copy,
        rendezvous=rendezvous_asked(args),
    )
    lowest = Request(command=()).slice.parity
    if asked.slice.warmup < lowest:
        raise UsageError(
            f"--warmup {asked.slice.warmup}: a tuning compares the losses of the first {lowest} "
            f"steps, so it takes at least {lowest}"
        )
    return asked if args.trials is None else replace(asked, trials=args.trials)


def write_plan(tuning: TuningResult, target: Path) -> str | None:
    """Write the plan of a gain, whole or not at all; return why that failed, None if it did not."""
    from aiak_tune.cli.files import write_whole
    from aiak_tune.errors import UsageError
    from aiak_tune.selector.plan import dump_plan, plan_of

    plan = plan_of(tuning)
    try:
        if plan is not None:
            write_whole(target, dump_plan(plan))
    except UsageError as error:
        # The tuning took its time and is stored; it is shown whatever becomes of the file.
        return str(error)
    return None


def screen(
    tuning: TuningResult, plan: Path, unwritten: str | None = None
) -> Iterator[RenderableType]:
    """Return what is printed of a tuning at its end."""
    from aiak_tune.cli import output, sections, verdict

    yield output.plain(
        f"{tuning.job.name} on {output.machine_text(tuning.environment)}, tuning {tuning.id}",
        style="bold",
    )
    if tuning.profile is not None:
        yield output.plain(f"As written: {sections.steps_text(tuning.profile)}")
        yield output.breakdown_table(tuning.profile)
        yield from sections.ranks_table(tuning.profile)
    unfit = [finding for finding in tuning.findings if not finding.fits]
    if unfit:
        yield sections.unfit_table(unfit)
    if tuning.trials:
        yield sections.trials_table(tuning)
    yield from sections.winners(tuning)
    if tuning.verdict == "failed":
        yield from sections.last_words(tuning)
    yield from sections.notes(tuning.warnings, tuning.profile.warnings if tuning.profile else ())
    yield output.plain("")
    yield output.plain(verdict.verdict_sentence(tuning), style="bold")
    yield output.plain(plan_text(tuning, plan, unwritten))
    yield output.command(verdict.next_step(tuning, plan=str(plan)))


def plan_text(tuning: TuningResult, plan: Path, unwritten: str | None) -> str:
    """Say where the plan is, or why there is none."""
    if unwritten is not None:
        return f"No plan was written: {unwritten}. The tuning is stored: `aiak-tune show last`"
    if tuning.verdict == "faster":
        return f"The plan is in {plan}."
    why = {
        "no_change": "nothing was proven faster",
        "failed": "the tuning failed",
        "interrupted": "the tuning did not end",
    }.get(tuning.verdict, "there is no winner")
    # Who finds a plan there must not take it for this tuning's.
    older = f"; {plan} is an older one and was left as it is" if plan.exists() else ""
    return f"No plan was written: {why}{older}."
