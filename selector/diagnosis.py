"""Why a start gave no figure, in words that a person can act on."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from aiak_tune.agent.records import Birth
from aiak_tune.selector import unseen
from aiak_tune.selector.first_failure import FirstFailure, first_failure
from aiak_tune.selector.launch import Outcome
from aiak_tune.selector.redaction import redact_text
from aiak_tune.selector.results import FailureCode

LINES = 15
OLDEST = (3, 10)
ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ADVICE: dict[FailureCode, str] = {
    "crash": "it has to run by itself first: does the same command without aiak-tune?",
    "out_of_memory": "a smaller batch may fit, or a machine with nothing else on it",
    "timeout": "does it wait for input, for a lock, or for other ranks?",
}
OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|can't allocate memory|Cannot allocate memory|"
    r"DefaultCPUAllocator|Bus error|unable to (?:write|open|mmap).*No space left on device",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A start that failed: a code, a sentence, and the job's own last lines."""

    code: FailureCode
    text: str
    tail: str

    @property
    def advice(self) -> str:
        """The sentence with what to do, for a job that fails as written."""
        what = ADVICE.get(self.code)
        return f"{self.text}; {what}" if what else self.text


def last_lines(text: str, count: int = LINES) -> str:
    """Return the last lines of what the job printed, secrets redacted."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    noise = [line for line in lines if not line.startswith("USDT:")]
    return redact_text("\n".join(noise[-count:]))


def diagnose(outcome: Outcome) -> Problem | None:
    """Return what went wrong, or None when every rank has a result with a counted window."""
    first = first_failure(outcome.failed, outcome.tail)
    if outcome.elsewhere is not None and first is None:
        code, text, tail = outcome.elsewhere
        return Problem(code=cast(FailureCode, code), text=text, tail=tail)
    tail = last_lines(first.text if first and first.text else outcome.tail)
    verdict, text = _verdict(outcome, first)
    return None if verdict is None else Problem(code=verdict, text=text, tail=tail)


def _verdict(outcome: Outcome, first: FirstFailure | None) -> tuple[FailureCode | None, str]:
    if outcome.faults:
        return (
            "incompatible",
            f"aiak-tune's agent failed in the job: {last_line(outcome.faults[0])}",
        )
    if outcome.stopped and outcome.stopped.startswith("timeout"):
        return "timeout", outcome.stopped.removeprefix("timeout: ")
    ended_badly = outcome.exit_code not in (0, None) and not outcome.stopped
    if (ended_badly or outcome.failed) and not _whole(outcome):
        return _crash(outcome, first)
    if not outcome.results:
        return _nothing(outcome)
    if any(r.status == "irregular" for r in outcome.results):
        return "incompatible", (
            f"the job's optimizers take no regular turns, so a step cannot be told; {unseen.MARK}"
        )
    if any(r.window is None or not r.window.steps for r in outcome.results):
        seen = max(r.warmup_steps for r in outcome.results)
        return "launch", (
            f"the job ended after {seen} steps, before any could be counted; "
            "use a longer run of it, or fewer --warmup steps"
        )
    ranks = max(r.here for r in outcome.results)
    if len(outcome.results) < ranks:
        return "crash", f"only {len(outcome.results)} of {ranks} ranks came to the end of the slice"
    return None, ""


def _whole(outcome: Outcome) -> bool:
    results = outcome.results
    return bool(results) and all(r.status == "complete" and len(results) >= r.here for r in results)


def _crash(outcome: Outcome, first: FirstFailure | None) -> tuple[FailureCode, str]:
    if outcome.exit_code == 127 and not outcome.births:
        return "launch", last_line(outcome.tail) or "the command cannot be started"
    if first is not None:
        told = f"rank {first.rank} failed first: {last_line(first.why)}"
        short = OUT_OF_MEMORY.search(first.text or first.why)
        return ("out_of_memory", f"out of memory: {told}") if short else ("crash", told)
    if OUT_OF_MEMORY.search(outcome.tail):
        return "out_of_memory", f"out of memory: {last_line(outcome.tail)}"
    code = outcome.exit_code or 0
    if -code in ASKED_TO_END:
        return "interrupted", f"the job was asked to end from outside (signal {-code})"
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return "crash", f"the job {how}: {last_line(outcome.tail) or 'it printed nothing'}"


def _nothing(outcome: Outcome) -> tuple[FailureCode, str]:
    never = never_armed(outcome.births, outcome.torch_births)
    if never is not None:
        return "launch", never
    return "launch", unseen.why_no_step(outcome.seen)


def never_armed(births: Sequence[Birth], torch_births: int) -> str | None:
    """Return why the agent never came to work in the job, None when it did."""
    if not births:
        return (
            "no Python process of the job loaded the agent: does it start python with -I, -E or "
            "-S, through env -i or sudo, or in a container?"
        )
    if torch_births:
        return None
    versions = {birth.python for birth in births}
    if all(tuple(map(int, v.split("."))) < OLDEST for v in versions):
        return f"the job runs Python {', '.join(sorted(versions))}: it takes 3.10 or later"
    return "the job ended without importing torch: is this the training command?"


def last_line(text: str) -> str:
    """Return the last line with something in it, secrets redacted."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return redact_text(lines[-1])[:300] if lines else ""
