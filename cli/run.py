"""`aiak-tune run`: the whole job with a plan applied; its output and exit code are the job's."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from aiak_tune.cli.files import check_targets, write_json
from aiak_tune.cli.lookup import read_plan
from aiak_tune.cli.messages import say
from aiak_tune.cli.options import PLAN_FILE, Verbs, add_job_verb, add_json_option
from aiak_tune.errors import PlanError, StoreError, UsageError

if TYPE_CHECKING:
    from aiak_tune.selector.results import Plan

REFUSED = 125  # as env, nice and timeout have it: no exit code of a training job
LOCAL = "local"
Note: TypeAlias = Callable[[str], None]


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    verb = add_job_verb(
        verbs,
        "run",
        help="the whole job with a plan applied",
        description="Run the whole job with a plan applied: the one in --plan FILE, or with "
        "--recommend one that was measured for this job; without either the job runs as written. "
        f"Signals reach the job, its exit code is returned; {REFUSED} means that the tool itself "
        "refused.",
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
    add_json_option(
        verb,
        help="write what became of the plan as JSON too; - for stdout, and what the job prints "
        "there goes to stderr then",
    )
    verb.set_defaults(run=run, refusal=REFUSED)


def run(args: argparse.Namespace) -> int:
    """Run the job; return its exit code."""
    if args.json is None:
        return _run(args, say, lambda told: None)
    check_targets(args.json)
    notes: list[str] = []
    told: dict[str, Any] = {}

    def note(text: str) -> None:
        notes.append(text)
        say(text)

    with _stdout_kept(args.json == "-"):
        code = _run(args, note, told.update)
    write_json(_document(code, notes, told), args.json)
    return code


def _run(args: argparse.Namespace, note: Note, tell: Callable[[dict[str, Any]], None]) -> int:
    plan = _plan(args, note)
    if plan is None:
        from aiak_tune.selector.foreground import run_here

        return run_here(args.command)[0]
    from aiak_tune.selector.run_plan import run_plan

    tell({"tuning_id": plan.tuning_id, "settings": {k: dict(v) for k, v in plan.settings.items()}})
    fallback = not args.no_fallback
    try:
        return run_plan(
            args.command, plan, force=args.force, fallback=fallback, note=note, tell=tell
        )
    except PlanError as refusal:
        if args.recommend is None:
            raise
        # Nobody chose this plan for this machine: the job comes first.
        note(f"the stored plan is not used: {refusal}; running as written")
        return run_plan(args.command, None, force=False, fallback=fallback, note=note)


def _document(code: int, notes: list[str], told: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": 1,
        "kind": "run",
        "exit_code": code,
        "tuning_id": told.get("tuning_id"),
        "settings": told.get("settings", {}),
        # What each setting did, null where it had no effect; null as a whole: nothing was told.
        "effects": told.get("effects"),
        "updates": told.get("updates"),
        "notes": notes,
    }


@contextmanager
def _stdout_kept(wanted: bool) -> Iterator[None]:
    """Let what is started meanwhile print to stderr, so that stdout gets the document alone."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _plan(args: argparse.Namespace, note: Note) -> Plan | None:
    if args.recommend not in (None, LOCAL):
        raise UsageError(
            f"cannot ask {args.recommend}: this version has no service to ask; "
            "--recommend without a URL asks the store on this machine"
        )
    if args.recommend is not None:
        return recommended(args.command, note)
    if args.plan is not None:
        return read_plan(args.plan)
    hint = (
        f"--plan {PLAN_FILE} uses the one here"
        if PLAN_FILE.exists()
        else ("--plan FILE uses one that `aiak-tune tune` wrote, --recommend the store's")
    )
    note(f"no plan given, running as written: {hint}")
    return None


def recommended(command: tuple[str, ...], note: Note = say) -> Plan | None:
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
        note(f"no plan could be looked up, running as written: {error}")
        return None
    if plan is None:
        note("no faster settings are stored for this job, running as written")
    else:
        note(f"using the plan of tuning {plan.tuning_id}, measured {plan.speedup:.2f}× as written")
    return plan
