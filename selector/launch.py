"""Starts the job once under a run specification, watches it, and says how it ended.

The job runs below a supervisor (supervisor.py) in a session of its own: whatever it spawns is
gone when `launch` returns, also when it is interrupted or this process is killed.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from aiak_tune.agent.records import (
    Birth,
    FailedRank,
    SliceRecord,
    read_births,
    read_failed,
    read_results,
    read_seen,
    read_torch_births,
)
from aiak_tune.agent.spec import SPEC_VARIABLE, RunSpec
from aiak_tune.agent.trackers import quiet_environment
from aiak_tune.errors import JobError
from aiak_tune.selector import unseen
from aiak_tune.selector.progress import Progress, ProgressReader

POLL_S = 0.05
STOP_S = 10.0
LAST_WORDS_S = 10.0  # for the other ranks to end by themselves when one has failed
RANK_FAILED = "a rank failed"
SLICE_OVER = "the slice is over"
NO_FOLDER = 74  # the supervisor's exit code where it cannot write
FULL = os.strerror(errno.ENOSPC)
MAKE_ROOM = "free some space, or set XDG_DATA_HOME to another disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds without a sign of life after which a start is given up."""

    first_step_s: float = 1800.0
    stall_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one start ended. `stopped`: why we ended it, None when the job ended by itself.

    `elsewhere`: what went wrong first on another node: a failure's code, text, and last lines.
    """

    exit_code: int | None
    results: tuple[SliceRecord, ...]
    births: tuple[Birth, ...]
    torch_births: int
    faults: tuple[str, ...]
    tail: str
    failed: tuple[FailedRank, ...] = ()
    duration_s: float
    stopped: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    seen: frozenset[str] = frozenset()
    elsewhere: tuple[str, str, str] | None = None


Watch = Callable[[Progress], str | None]


def job_environment(run_dir: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the variables a job is started with: ours, and the user's untouched."""
    bootstrap = str(PACKAGE_BOOTSTRAP)
    before = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        **extra,
        SPEC_VARIABLE: str(run_dir / "spec.json"),
        "PYTHONPATH": f"{bootstrap}{os.pathsep}{before}" if before else bootstrap,
    }


# Not resolved: in a checkout the layers are links below src/aiak_tune, and the bootstrap finds the
# package three folders above itself.
PACKAGE_BOOTSTRAP = Path(sys.modules["aiak_tune"].__path__[0]) / "agent" / "bootstrap"


def launch(
    command: Sequence[str],
    spec: RunSpec,
    *,
    limits: Limits | None = None,
    watch: Watch = lambda progress: None,
    folder: Path | None = None,
) -> Outcome:
    """Run the command to the end of its slice.

    Args:
        command: the job as the user gave it, run without standard input.
        spec: `spec.run_dir` exists and is empty.
        limits: when to give up; generous by default.
        watch: called with the progress about every 50 ms; a text it returns ends the start.
        folder: where to run it; the current one by default.

    Raises:
        JobError: the run folder cannot be written.
        KeyboardInterrupt: passed on, once no process is left.
    """
    run_dir = Path(spec.run_dir)
    try:
        (run_dir / "spec.json").write_text(replace(spec, supervised=True).dump())
    except OSError as error:
        raise JobError(
            f"the run folder {run_dir} cannot be written ({error.strerror}); {MAKE_ROOM}"
        ) from error
    environment = job_environment(run_dir, spec.environment)
    if folder is not None:
        environment["PWD"] = str(folder)
    script = Path(__file__).with_name("supervisor.py")
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(script), str(run_dir), str(os.getpid()), "--", *command],
        env=quiet_environment(environment, run_dir),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    stopped = None
    try:
        stopped = _follow(process, run_dir, limits or Limits(), watch)
    finally:
        _end(process, at_once=stopped == SLICE_OVER)
    return _outcome(process, run_dir, stopped, time.monotonic() - began)


def _follow(
    process: subprocess.Popen[bytes], run_dir: Path, limits: Limits, watch: Watch
) -> str | None:
    """Wait for the end; return why we end it ourselves, or None."""
    reader = ProgressReader(run_dir)
    began = alive = time.monotonic()
    failing: float | None = None
    while process.poll() is None:
        time.sleep(POLL_S)
        now = time.monotonic()
        if reader.read():
            alive = now
        if reader.progress.phase == "done" and _all_told(run_dir):
            return SLICE_OVER
        reason = watch(reader.progress)
        if reason is not None:
            return reason
        if any(run_dir.glob("fault-*.txt")):
            return "fault"
        failing = failing or (now if any(run_dir.glob("failed-*.json")) else None)
        if failing is not None and now - failing > LAST_WORDS_S:
            return RANK_FAILED  # the others wait for it, perhaps for half an hour
        if reader.progress.step == 0 and now - began > limits.first_step_s:
            told = unseen.seen_text(reader.progress.seen)
            return f"timeout: no step within {limits.first_step_s:.0f} s ({told})"
        if reader.progress.step and now - alive > limits.stall_s:
            where = f"{reader.progress.step}{reader.progress.behind_text()}"
            return f"timeout: no step for {limits.stall_s:.0f} s after step {where}"
    return None


def _all_told(run_dir: Path) -> bool:
    """Whether every rank here has written its result; `_outcome` says what is wrong with one."""
    try:
        results = read_results(run_dir)
    except ValueError:
        return True
    return bool(results) and len(results) >= max(r.here for r in results)


def _end(process: subprocess.Popen[bytes], *, at_once: bool) -> None:
    """Tell the supervisor to end everything, and wait until it has."""
    if process.poll() is None:
        process.send_signal(signal.SIGUSR1 if at_once else signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _outcome(
    process: subprocess.Popen[bytes], run_dir: Path, stopped: str | None, duration_s: float
) -> Outcome:
    assert process.stderr is not None
    complaint = process.stderr.read().decode(errors="replace")
    process.stderr.close()
    if process.returncode == NO_FOLDER:
        what = complaint.strip() or f"the run folder {run_dir} cannot be written"
        raise JobError(f"{what}; {MAKE_ROOM}")
    faults = tuple(p.read_text(errors="replace") for p in sorted(run_dir.glob("fault-*.txt")))
    if any(FULL in text or not text for text in faults):
        raise JobError(f"the run folder {run_dir} is on a full disk; {MAKE_ROOM}")
    try:
        supervised = json.loads((run_dir / "supervised.json").read_text())
        tail = (run_dir / "output.log").read_text(errors="replace")
    except (OSError, ValueError):
        supervised, tail = {"exit_code": None}, complaint
    try:
        results = tuple(read_results(run_dir))
    except ValueError as error:
        raise JobError(f"a rank's result cannot be read: {error}") from error
    return Outcome(
        exit_code=supervised["exit_code"],
        results=results,
        births=tuple(read_births(run_dir)),
        torch_births=read_torch_births(run_dir),
        faults=faults,
        seen=read_seen(run_dir),
        tail=tail,
        failed=tuple(read_failed(run_dir)),
        duration_s=duration_s,
        stopped=stopped,
    )
