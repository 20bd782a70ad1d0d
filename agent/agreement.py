"""What the ranks of a job agree on, once, in the warm-up: how many steps the rest of the slice has.

Each rank stops, and starts and ends its window, at a step that depends on the clock, on its queue
and on what it evaluates. A rank that stops one step before another leaves it alone in a collective,
for ever. So the ranks meet at the end of one step, the same in all of them, say what each needs,
and from there on count steps (docs/decisions/0009-ranks-count-steps.md).

They meet in the store that torch.distributed itself has for the job: it is the same for all nodes,
and no other job's. One rank puts the answer together; it is written once and read by all, so that
who comes late takes it too, and none decides something else.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from aiak_tune.agent.spec import SlicePlan

FEWEST_STEPS = 3
LONGEST_TURN = 64  # steps; workers of several ranks that have no shorter turn in common are let be
WAIT_S, PATIENCE_S = 30.0, 10.0
POLL_S = 0.01
FAULTS = (AttributeError, RuntimeError, ValueError, TypeError, LookupError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What one rank needs. `place`: its machine and run folder.

    `warm_up`: steps until its queued batches are used up. `turn`: the steps in which its workers
    make equally many batches. `settled`: nothing speaks against counting.
    """

    step_ns: float
    warm_up: int = 0
    turn: int = 1
    place: str = ""
    settled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Steps from the meeting on, the same in every rank.

    `places`: by rank, None for one that did not come in time. `alone`: why this rank took the
    plan's own numbers, without a word of the others. `again`: one is not settled; meet once more.
    """

    warm_up: int
    steps: int
    profiled: int
    places: tuple[str | None, ...] = ()
    alone: str | None = None
    again: bool = False

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that did not come."""
        return tuple(n for n, place in enumerate(self.places) if place is None)


def agreed(proposals: Mapping[int, Proposal], plan: SlicePlan, ranks: int) -> Agreement:
    """Return what suits all: the most that any rank needs, within the plan's longest window.

    With no proposals at all it is the plan's own numbers: still the same in every rank.
    """
    known = proposals.values()
    need, most = plan.steps, math.inf
    for proposal in known:
        pace = max(1.0, proposal.step_ns)
        need = max(need, math.ceil(plan.min_window_s * 1e9 / pace))
        most = min(most, math.floor(plan.max_window_s * 1e9 / pace))
    steps = int(max(FEWEST_STEPS, min(need, most)))
    turn = math.lcm(*(max(1, p.turn) for p in known))
    if turn <= LONGEST_TURN:
        steps = math.ceil(steps / turn) * turn
    return Agreement(
        warm_up=max((p.warm_up for p in known), default=0),
        steps=steps,
        # The first step under the profiler has no mark.
        profiled=plan.profiled + 1 if plan.profiled else 0,
        places=tuple(proposals[n].place if n in proposals else None for n in range(ranks)),
        again=not all(p.settled for p in known),
    )


class Meeting:
    """The ranks of a job, in the job's own store. `what` tells one meeting from the next."""

    def __init__(
        self,
        store: Any,
        rank: int,
        ranks: int,
        *,
        wait_s: float = WAIT_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._store, self._rank, self._ranks = store, rank, ranks
        self._wait_s, self._patience_s = wait_s, patience_s

    def agree(self, what: str, mine: Proposal, plan: SlicePlan) -> Agreement:
        """Say what this rank needs, and return what holds for all; waits a bounded time."""
        try:
            self._store.set(_key(what, self._rank), json.dumps(asdict(mine)))
            if self._rank == 0:
                answer = agreed(self._proposals(what), plan, self._ranks)
            else:
                if self._come(self._wait_s + self._patience_s, [_key(what, "answer")]):
                    return _answer(self._store.get(_key(what, "answer")))
                answer = agreed({}, plan, self._ranks)
            # Only the first answer counts: a rank that waited too long wrote one in rank 0's place.
            text = json.dumps(asdict(answer))
            return _answer(self._store.compare_set(_key(what, "answer"), "", text))
        except FAULTS as error:
            return Agreement(
                warm_up=0, steps=plan.steps, profiled=agreed({}, plan, 0).profiled,
                alone=f"the ranks could not meet: {type(error).__name__}: {error}"[:300],
            )  # fmt: skip

    def end(self, expected: Sequence[int]) -> None:
        """Say that this rank is done, and wait a bounded time until the others are.

        Until then one of them may still be in a collective that needs this process.
        """
        try:
            self._store.set(_key("end", self._rank), "1")
            self._come(self._wait_s, [_key("end", n) for n in expected])
        except FAULTS:  # rank 0 had the store and is gone: it saw all of us here
            return

    def _proposals(self, what: str) -> dict[int, Proposal]:
        keys = [_key(what, n) for n in range(self._ranks)]
        if not self._come(self._wait_s, keys):
            keys = [key for key in keys if self._store.check([key])]
        told = {int(key.rpartition("/")[2]): json.loads(self._store.get(key)) for key in keys}
        return {n: Proposal(**said) for n, said in told.items()}

    def _come(self, seconds: float, keys: list[str]) -> bool:
        """Poll: a blocking call would hold the store's connection against the job's own use."""
        deadline = time.monotonic() + seconds
        while not self._store.check(keys):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True


def _key(what: str, who: int | str) -> str:
    return f"aiak-tune/{what}/{who}"


def _answer(text: bytes) -> Agreement:
    data = json.loads(text)
    return Agreement(**{**data, "places": tuple(data["places"])})
