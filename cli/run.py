"""`aiak-tune run`: the whole job with a plan applied; its output and exit code are the job's."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from aiak_tune.cli.lookup import read_plan
from aiak_tune.cli.messages import say
from aiak_tune.cli.options import PLAN_FILE, Verbs, add_job_verb
from aiak_tune.errors import PlanError, StoreError, UsageError

if TYPE_CHECKING:
    from aiak_tune.selector.results import Plan

REFUSED = 125  # as env, nice and timeout have it: no exit code of a training job
LOCAL = "local"


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    verb = add_job_verb(
        verbs,
        "run",
        help="the whole job with a plan applied",
        description="Run the whole job with a plan applied. Signals reach the job, its exit code "
        f"is returned; {REFUSED} means that the tool itself refused.",
    )
    choice = verb.add_mutually_exclusive_group()
    choice.add_argument("--plan", type=Path, metavar="FILE", help="as `aiak-tune tune` wrote it")
    choice.add_argument(
        "--recommend",
        nargs="?",
        const=LOCAL,
        metavar="URL",
        help="take the newest plan that was measured for this job here; none: run as written",
    )
    verb.add_argument("--force", action="store_true", help="use the plan in another environment")
    verb.add_argument(
        "--no-fallback",
        action="store_true",
        help="a job that dies early under the plan is not started once more as written",
    )
    verb.set_defaults(run=run, refusal=REFUSED)


def run(args: argparse.Namespace) -> int:
    """Run the job; return its exit code."""
    from aiak_tune.selector.run_plan import run_plan

    fallback = not args.no_fallback
    plan = _plan(args)
    try:
        return run_plan(args.command, plan, force=args.force, fallback=fallback, note=say)
    except PlanError as refusal:
        if args.recommend is None:
            raise
        # Nobody chose this plan for this machine: the job comes first.
        say(f"the stored plan is not used: {refusal}; running as written")
        return run_plan(args.command, None, force=False, fallback=fallback, note=say)


def _plan(args: argparse.Namespace) -> Plan | None:
    if args.recommend not in (None, LOCAL):
        raise UsageError(
            f"cannot ask {args.recommend}: this version has no service to ask; "
            "--recommend without a URL asks the store on this machine"
        )
    if args.recommend is not None:
        return recommended(args.command)
    if args.plan is not None:
        return read_plan(args.plan)
    here = f"; there is {PLAN_FILE} here: --plan {PLAN_FILE} uses it" if PLAN_FILE.exists() else ""
    say(f"no plan given, running as written{here}")
    return None


def recommended(command: tuple[str, ...]) -> Plan | None:
    """Return the newest plan measured for this job, None (which is said) where there is none."""
    from aiak_tune.api.store import open_store
    from aiak_tune.profiles.fingerprint import job_fingerprint
    from aiak_tune.selector.plan import dump_plan, load_plan, plan_of
    from aiak_tune.selector.redaction import redact_command

    fingerprint = job_fingerprint(redact_command(command), Path.cwd())
    try:
        with open_store() as store:
            tunings = store.newest(limit=100, job_fingerprint=fingerprint)
        found = next((plan for tuning in tunings if (plan := plan_of(tuning))), None)
        # By way of the text: a tuning of another version may have settings that this one has not.
        plan = None if found is None else load_plan(dump_plan(found))
    except (StoreError, PlanError) as error:
        say(f"no plan could be looked up, running as written: {error}")
        return None
    if plan is None:
        say("no faster settings are stored for this job, running as written")
    else:
        say(f"using the plan of tuning {plan.tuning_id}, measured {plan.speedup:.2f}× as written")
    return plan
