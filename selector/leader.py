"""Node 0 of several: each start of the job happens on all nodes, and is one start to the tuning."""

from __future__ import annotations

import base64
import re
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from aiak_tune.agent.records import FailedRank, read_results
from aiak_tune.agent.spec import RunSpec, SlicePlan
from aiak_tune.errors import JobError
from aiak_tune.optimizations.base import Settings
from aiak_tune.selector.launch import SLICE_OVER, Limits, Outcome, Watch, launch
from aiak_tune.selector.link import Link, Message
from aiak_tune.selector.progress import Progress

END_S = 120.0  # for the other nodes to report when node 0's own part has ended
POLL_S = 0.05
FILE = re.compile(r"(?:result|trace)-\d{1,7}\.json")
ELSEWHERE = "node "  # how a reason begins that another node gave


class Leader:
    """Starts the job on all nodes: `tell` what comes next, then `launch` as on one node."""

    def __init__(self, links: Mapping[int, Link]) -> None:
        self._links = dict(links)
        self._ended: dict[int, Message] = {}
        self._number = 0

    def tell(self, what: str, settings: Settings, plan: SlicePlan, limits: Limits) -> None:
        """Have every other node start its part."""
        self._number += 1
        self._ended = {}
        start = {
            "start": self._number,
            "what": what,
            "settings": {name: dict(params) for name, params in settings.items()},
            "slice": asdict(plan),
            "limits": asdict(limits),
        }
        for link in self._links.values():
            link.send(start)

    def launch(
        self,
        command: Sequence[str],
        spec: RunSpec,
        *,
        limits: Limits | None = None,
        watch: Watch = lambda progress: None,
        folder: Path | None = None,
    ) -> Outcome:
        """Run this node's part, and return what all nodes did as one outcome.

        Raises:
            JobError: a node is gone, or does not end; and as on one node.
        """

        def told(progress: Progress) -> str | None:
            return self._trouble() or watch(progress)

        try:
            outcome = launch(command, spec, limits=limits, watch=told, folder=folder)
        except BaseException:
            self._stop("node 0 stopped")
            raise
        if outcome.stopped != SLICE_OVER:
            self._stop(outcome.stopped or "node 0's part of the job ended")
        self._wait()
        return self._merged(outcome, Path(spec.run_dir))

    def end(self, verdict: str, reason: str | None, plan: str | None) -> None:
        """Tell every node how it ended; those that are gone need not know."""
        for link in self._links.values():
            try:
                link.send({"end": verdict, "reason": reason, "plan": plan})
            except JobError:
                continue

    def _trouble(self) -> str | None:
        """Take what the nodes report; return what went wrong on one of them."""
        for node, link in self._links.items():
            message = link.poll()
            if message is not None and message.get("ended") == self._number:
                self._ended[node] = message
        bad = [(n, m["problem"]) for n, m in self._ended.items() if m.get("problem")]
        return f"{ELSEWHERE}{bad[0][0]}: {bad[0][1]['text']}" if bad else None

    def _stop(self, reason: str) -> None:
        for node, link in self._links.items():
            if node not in self._ended:
                with suppress(JobError):  # it is gone, which the reason says, or `_wait` will
                    link.send({"stop": self._number, "reason": reason})

    def _wait(self) -> None:
        deadline = time.monotonic() + END_S
        while len(self._ended) < len(self._links):
            self._trouble()
            if time.monotonic() > deadline:
                missing = next(node for node in self._links if node not in self._ended)
                raise JobError(f"node {missing} did not end its part within {END_S:.0f} s")
            time.sleep(POLL_S)

    def _merged(self, outcome: Outcome, run_dir: Path) -> Outcome:
        for message in self._ended.values():
            for name, packed in message["files"].items():
                if FILE.fullmatch(name):
                    (run_dir / name).write_bytes(zlib.decompress(base64.b64decode(packed)))
        try:
            results = tuple(read_results(run_dir))
        except (ValueError, TypeError, KeyError) as error:
            raise JobError(f"a rank's result cannot be read: {error}") from error
        messages = self._ended.values()
        failed = [FailedRank(**f) for m in messages for f in m["failed"]]
        merged = replace(
            outcome,
            results=results,
            failed=(*outcome.failed, *failed),
            faults=(*outcome.faults, *(f for m in messages for f in m["faults"])),
        )
        return replace(merged, elsewhere=self._elsewhere(outcome, merged))

    def _elsewhere(self, own: Outcome, merged: Outcome) -> tuple[str, str, str] | None:
        """Return another node's problem as (code, text, last lines), where it came first."""
        torches = {str(r.environment.get("torch")) for r in merged.results}
        if len(torches) > 1:
            both = " and ".join(sorted(torches))
            return "incompatible", f"the nodes have different versions of torch: {both}", ""
        whole = own.stopped == SLICE_OVER
        if not whole and not (own.stopped or "").startswith(ELSEWHERE):
            return None
        for node, message in self._ended.items():
            problem: dict[str, Any] | None = message.get("problem")
            if problem:
                return problem["code"], f"{ELSEWHERE}{node}: {problem['text']}", problem["tail"]
        return None
