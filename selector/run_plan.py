"""`run`: the whole job with a plan, in the user's own terminal, with its signals and exit code."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from aiak_tune.agent.spec import RunSpec
from aiak_tune.agent.whole import SAFE_STEPS
from aiak_tune.errors import JobError, PlanError
from aiak_tune.optimizations.base import Stage
from aiak_tune.optimizations.catalog import by_name
from aiak_tune.profiles.workload import Environment
from aiak_tune.selector.launch import job_environment
from aiak_tune.selector.plan import differences
from aiak_tune.selector.profile_job import job_facts
from aiak_tune.selector.results import Plan

PASSED_ON = (
    signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGCONT,
)  # fmt: skip
PR_SET_PDEATHSIG = 1


def run_plan(
    command: Sequence[str],
    plan: Plan | None,
    *,
    force: bool,
    fallback: bool,
    note: Callable[[str], None],
) -> int:
    """Run the job to its end and return its exit code (128 + n where signal n ended it).

    Raises:
        PlanError: the plan was made elsewhere, in what matters, and not `force`.
        JobError: the command cannot be started.
    """
    job = job_facts(command)
    if plan is None or not plan.settings:
        return _wait(command, dict(os.environ))
    if plan.job.fingerprint not in (None, job.fingerprint):
        note(f"the plan was made for another command ({plan.job.name}): its model is checked")
    apart = differences(plan, here())
    if apart and not force:
        raise PlanError(
            f"the plan was made elsewhere: {'; '.join(apart)}: tune here, or use --force"
        )
    with tempfile.TemporaryDirectory(prefix="aiak-tune-") as folder:
        code = _under_plan(command, plan, Path(folder), note)
        told = _told(Path(folder))
        for text in _remarks(plan, told):
            note(text)
        early = code not in (0, None) and told is None
    if not early or not fallback or code in _ASKED_TO_END:
        return code
    note(
        f"the job ended with {code} before its step {SAFE_STEPS} under the plan: "
        "starting it once more as written (--no-fallback would not)"
    )
    return _wait(command, dict(os.environ))


_ASKED_TO_END = tuple(128 + s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)) + (130,)


def here() -> Environment:
    """Return this machine's environment as far as it is known without torch."""
    from aiak_tune.profiles.hardware import gpus, host_facts

    return Environment(**host_facts() | gpus())


def _under_plan(
    command: Sequence[str], plan: Plan, folder: Path, note: Callable[[str], None]
) -> int:
    variables: dict[str, str] = {}
    inside = {}
    for name, params in plan.settings.items():
        if by_name[name].stage is Stage.ENVIRONMENT:
            by_name[name].apply(variables, params)
        else:
            inside[name] = params
    spec = RunSpec(
        run_dir=str(folder), settings=inside, model_fingerprint=plan.job.model_fingerprint
    )
    (folder / "spec.json").write_text(spec.dump())
    return _wait(command, job_environment(folder, variables))


def _wait(command: Sequence[str], environment: dict[str, str]) -> int:
    """Start the job in this terminal and process group; pass signals on; return its code."""
    own = os.getpid()

    def before_exec() -> None:
        # A job whose tool is gone has nobody to report to: end it as its scheduler would.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != own:
            os._exit(1)

    try:
        process = subprocess.Popen(command, env=environment, preexec_fn=before_exec)
    except OSError as error:
        raise JobError(f"{command[0]} cannot be started: {error.strerror}") from error

    def passed_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    before = {s: signal.signal(s, passed_on) for s in PASSED_ON}
    # The terminal sends Ctrl-C to the job too, which decides by itself what it means.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _told(folder: Path) -> dict[str, object] | None:
    """Return what rank 0 told when its first steps had passed, or None: it did not come so far."""
    try:
        told = json.loads((folder / "applied-0.json").read_text())
    except (OSError, ValueError):
        return None
    return dict(told) if told["updates"] >= SAFE_STEPS or told["stopped"] else None


def _remarks(plan: Plan, told: dict[str, object] | None) -> list[str]:
    if told is None:
        return []
    if told["stopped"]:
        return [str(told["stopped"])]
    effects = told["effects"]
    assert isinstance(effects, dict)
    return [f"{name} had no effect in this run" for name, text in effects.items() if text is None]
