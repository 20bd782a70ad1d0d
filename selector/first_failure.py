"""Which rank of several failed first: the others die of its end, and print over its last lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from aiak_tune.agent.records import FailedRank

# What the others say when a rank is gone.
PEER = re.compile(
    r"Connection (closed|reset) by (peer|remote)|Broken pipe|remote process exited|"
    r"NCCL.*(remote|unhandled system) error|failed to recv|Socket Timeout|store.*(closed|timeout)",
    re.IGNORECASE,
)
# torchrun's summary, which knows the signal that ended a rank.
ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL
)
SPAWNED = re.compile(r"-- Process (\d+) terminated with the following error:\n(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFailure:
    """The rank, why it failed in a few words, and its own last lines ("" where it left none)."""

    rank: int
    why: str
    text: str


def first_failure(failed: Sequence[FailedRank], tail: str) -> FirstFailure | None:
    """Return the rank that failed first, None where nothing tells it.

    Args:
        failed: what ranks that died of an exception said themselves.
        tail: what the job printed.
    """
    own = sorted(failed, key=lambda f: f.at_ns)
    first = next((f for f in own if not PEER.search(f.error)), None)
    if first is not None:
        return FirstFailure(rank=first.rank, why=_first(first.error), text=first.text)
    summary = ROOT_CAUSE.search(tail)
    if summary is not None:
        rank, code = int(summary[1]), int(summary[2])
        how = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return FirstFailure(rank=rank, why=how, text="")
    spawned = SPAWNED.search(tail)
    if spawned is not None:
        return FirstFailure(rank=int(spawned[1]), why=_last(spawned[2]), text=spawned[2])
    if not own:
        return None
    return FirstFailure(rank=own[0].rank, why=_first(own[0].error), text=own[0].text)


def _first(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
