"""`run`: the whole job with a plan, in the user's own terminal, with its signals and exit code."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiak_tune.agent.records import read_births, read_torch_births
from aiak_tune.agent.spec import RunSpec
from aiak_tune.agent.whole import SAFE_STEPS
from aiak_tune.errors import JobError, PlanError
from aiak_tune.optimizations.base import Stage
from aiak_tune.optimizations.catalog import by_name
from aiak_tune.profiles.workload import Environment
from aiak_tune.selector.diagnosis import last_line, never_armed
from aiak_tune.selector.foreground import run_here
from aiak_tune.selector.job import job_facts
from aiak_tune.selector.launch import job_environment
from aiak_tune.selector.plan import differences
from aiak_tune.selector.results import Plan
from aiak_tune.selector.variables import variables_of


def run_plan(
    command: Sequence[str],
    plan: Plan | None,
    *,
    force: bool,
    fallback: bool,
    note: Callable[[str], None],
    tell: Callable[[dict[str, Any]], None] | None = None,
) -> int:
    """Run the job to its end and return its exit code (128 + n where signal n ended it).

    `tell` gets what the agent told of the plan: `updates`, `applied`, `stopped`, `effects`.

    Raises:
        PlanError: the plan was made elsewhere, in what matters, and not `force`.
        JobError: the command cannot be started.
    """
    job = job_facts(command)
    if plan is None or not plan.settings:
        return run_here(command)[0]
    if plan.job.fingerprint not in (None, job.fingerprint):
        note(f"the plan was made for another command ({plan.job.name}): its model is checked")
    # How many ranks there are shows in the job alone: there the plan's number is looked at.
    there = plan.environment
    now = replace(here(), nodes=there.nodes, ranks_per_node=there.ranks_per_node)
    apart = differences(plan, now)
    if apart and not force:
        raise PlanError(
            f"the plan was made elsewhere: {'; '.join(apart)}: tune here, or use --force"
        )
    with _run_folder() as folder:
        code, asked = _under_plan(command, plan, folder, force=force)
        told = _told(folder)
        if told is not None and tell is not None:
            tell(told)
        for text in _remarks(folder, told, code):
            note(text)
        early = code != 0 and _may_be_the_plans(plan, told, folder)
    if not early or not fallback or asked or code in _ASKED_TO_END:
        return code
    note(
        f"the job ended with {code} before its step {SAFE_STEPS} under the plan: "
        "starting it once more as written (--no-fallback would not)"
    )
    return run_here(command)[0]


_ASKED_TO_END = tuple(128 + s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


def here() -> Environment:
    """Return this machine's environment as far as it is known without torch."""
    from aiak_tune.profiles.hardware import gpus, host_facts

    return Environment(**host_facts() | gpus())


@contextmanager
def _run_folder() -> Iterator[Path]:
    """A folder for what the agent tells; what the job's daemons still hold of it may stay."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="aiak-tune-", ignore_cleanup_errors=True)
    except OSError as error:
        raise JobError(
            f"no run folder can be made in {tempfile.gettempdir()} ({error.strerror}): free some "
            "space, or set TMPDIR to another disk"
        ) from error
    with folder as name:
        yield Path(name)


def _under_plan(
    command: Sequence[str], plan: Plan, folder: Path, *, force: bool
) -> tuple[int, bool]:
    variables = variables_of(plan.settings, by_name)
    made_with = plan.environment
    spec = RunSpec(
        run_dir=str(folder),
        settings=plan.settings,
        model_fingerprint=plan.job.model_fingerprint,
        ranks=0 if force else made_with.nodes * made_with.ranks_per_node,
        versions={} if force else {"torch": made_with.torch or "", "cuda": made_with.cuda or ""},
    )
    try:
        (folder / "spec.json").write_text(spec.dump())
    except OSError as error:
        raise JobError(
            f"the run folder {folder} cannot be written ({error.strerror}): free some space, or "
            "set TMPDIR to another disk"
        ) from error
    return run_here(command, job_environment(folder, variables))


def _told(folder: Path) -> dict[str, Any] | None:
    """Return what the ranks here told, as one; None: none came so far."""
    told = {}
    for place in folder.glob("applied-*.json"):
        try:
            told[int(place.stem.partition("-")[2])] = dict(json.loads(place.read_text()))
        except (OSError, ValueError):
            continue
    return _together(told) if told else None


def _together(told: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Merge the ranks' reports: as far as the last one came, an effect where all had it."""
    ranks = [told[rank] for rank in sorted(told)]
    stopped = {rank: told[rank]["stopped"] for rank in sorted(told) if told[rank]["stopped"]}
    why = next(iter(stopped.values()), None)
    if why is not None and len(stopped) < len(ranks):
        who = ", ".join(map(str, stopped))
        why = f"in rank {who} of {len(ranks)} alone, {why}"
    effects = dict(ranks[0]["effects"])
    for rank in ranks[1:]:
        effects |= {name: None for name in effects if rank["effects"].get(name) is None}
    return {
        "updates": min(rank["updates"] for rank in ranks),
        "applied": any(rank["applied"] for rank in ranks),
        "stopped": why,
        "effects": effects,
        "problems": {name: text for rank in ranks for name, text in rank["problems"].items()},
    }


def _may_be_the_plans(plan: Plan, told: dict[str, Any] | None, folder: Path) -> bool:
    """Whether an early end may come from us: something was in place, or the agent failed."""
    if any(folder.glob("fault-*.txt")):
        return True
    if any(by_name[name].stage is Stage.ENVIRONMENT for name in plan.settings):
        return not _came_far(told)
    return told is not None and told["applied"] and not _came_far(told)


def _came_far(told: dict[str, Any] | None) -> bool:
    return told is not None and told["updates"] >= SAFE_STEPS


def _remarks(folder: Path, told: dict[str, Any] | None, code: int) -> list[str]:
    """Say what became of the plan, where it is not what the user expects."""
    if not folder.exists():
        return [f"the job removed the run folder {folder}: what the plan did is not known"]
    said = []
    for fault in sorted(folder.glob("fault-*.txt")):
        text = last_line(fault.read_text(errors="replace"))
        said.append(f"aiak-tune's agent failed in the job and left it alone: {text}")
    if told is not None and told["stopped"]:
        return [*said, str(told["stopped"])]
    if told is not None and _came_far(told):
        without = [name for name, text in told["effects"].items() if text is None]
        return said + [f"{name} had no effect in this run" for name in without]
    never = never_armed(read_births(folder), read_torch_births(folder))
    if never is not None:
        said.append(f"the plan was not applied: {never}")
    elif code == 0 and not said:
        said.append(f"the job ended before its step {SAFE_STEPS}: what the plan did is not known")
    return said
