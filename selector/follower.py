"""A node of several that is not node 0: it starts its part of the job when node 0 says so."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiak_tune.agent.spec import SlicePlan
from aiak_tune.errors import JobError, UsageError
from aiak_tune.optimizations.base import Optimization
from aiak_tune.optimizations.catalog import CATALOG
from aiak_tune.selector.folders import data_folder, made
from aiak_tune.selector.job import job_facts
from aiak_tune.selector.launch import Limits
from aiak_tune.selector.leader import FILE
from aiak_tune.selector.link import Link, Message
from aiak_tune.selector.lock import machine_lock, one_at_a_time
from aiak_tune.selector.progress import Progress
from aiak_tune.selector.rendezvous import joined, this_machine
from aiak_tune.selector.reporter import Reporter
from aiak_tune.selector.request import Request
from aiak_tune.selector.starts import Start, Starter

STOPPED = "node 0: "  # how a reason begins that node 0 gave


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """How node 0's tuning ended; `plan` is its text where there is a gain."""

    verdict: str
    reason: str | None
    plan: str | None


def follow(
    request: Request, *, reporter: Reporter, catalog: Sequence[Optimization] = CATALOG
) -> Followed:
    """Do this node's part of every start until node 0 has its verdict.

    Raises:
        JobError: node 0 does not answer, or is gone.
        UsageError: node 0 does not take this node, with its reason.
    """
    where = request.rendezvous
    assert where is not None
    what = " ".join(job_facts(request.command).command)[:200]
    runs_dir = request.runs_dir or made(data_folder() / "runs")
    reporter.note(f"calling node 0 at {where.place}")
    link, machine = joined(where, request.command)
    try:
        if machine == this_machine():  # node 0 holds this machine's lock, for both
            return _serve(link, request, runs_dir, reporter, catalog)
        with one_at_a_time(machine_lock(), what, wait=request.wait, note=reporter.note):
            return _serve(link, request, runs_dir, reporter, catalog)
    finally:
        link.close()


def _serve(
    link: Link,
    request: Request,
    runs_dir: Path,
    reporter: Reporter,
    catalog: Sequence[Optimization],
) -> Followed:
    copied = Path.cwd() if request.workdir_copy else None
    starter = Starter(
        request.command, runs_dir, reporter, catalog, keep=request.keep_logs, copied=copied
    )
    link.send({"ready": True})
    reporter.note("node 0 decides what is started; its screen has the results")
    while True:
        message = link.receive(None) or {}
        if "end" in message:
            plan = message.get("plan")
            return Followed(
                verdict=str(message["end"]),
                reason=message.get("reason"),
                plan=None if plan is None else str(plan),
            )
        if "start" in message:
            _part(link, starter, message)


def _part(link: Link, starter: Starter, message: Message) -> None:
    """Start this node's part, and report it."""
    number = message["start"]
    stop = _stopper(link, number)
    try:
        starter.limits = Limits(**message["limits"])
        plan = SlicePlan(**message["slice"])
        start = starter.start(str(message["what"]), message["settings"], plan, stop)
    except (JobError, UsageError) as error:
        link.send(_report(number, {"code": "launch", "text": str(error), "tail": ""}))
        return
    try:
        link.send(_of(start, number))
    finally:
        starter.forget(start)


def _stopper(link: Link, number: int) -> Callable[[Progress], str | None]:
    def watch(progress: Progress) -> str | None:
        message = link.poll()
        if message is not None and message.get("stop") == number:
            return f"{STOPPED}{message.get('reason')}"
        return None

    return watch


def _of(start: Start, number: int) -> Message:
    outcome, problem = start.outcome, start.problem
    asked = (outcome.stopped or "").startswith(STOPPED)
    told = None
    if problem is not None and not asked:
        told = {"code": problem.code, "text": problem.text, "tail": problem.tail}
    files = {
        place.name: base64.b64encode(zlib.compress(place.read_bytes(), 1)).decode()
        for place in start.run_dir.iterdir()
        if FILE.fullmatch(place.name)
    }
    failed = [asdict(f) for f in outcome.failed]
    return _report(number, told, files=files, failed=failed, faults=list(outcome.faults))


def _report(number: int, problem: dict[str, Any] | None, **more: Any) -> Message:
    return {"ended": number, "problem": problem, "files": {}, "failed": [], "faults": [], **more}
