"""One rank's part in a slice that all ranks end together; alone, it costs a look at a flag."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from aiak_tune.agent import facts
from aiak_tune.agent.agreement import Agreement, Meeting, Proposal
from aiak_tune.agent.feeding import Feed
from aiak_tune.agent.ranks import process_group, rank, ranks_here, wait_for_results, world_size
from aiak_tune.agent.spec import SlicePlan
from aiak_tune.profiles.clock import StepTimes

PACED_STEPS = 4  # behind the steps whose samples are seeded one by one, which takes time


class Joint:
    """Who this rank is, and what the ranks agreed on; `agreement` is None for one rank alone."""

    def __init__(self, torch: Any, run_dir: Path) -> None:
        self._torch, self._run_dir = torch, run_dir
        self._meeting: Meeting | None = None
        self._began = self._began_ns = self._met = 0
        self.least = self._open_at = 0
        self.rank, self.ranks = rank(), world_size()
        self.agreement: Agreement | None = None

    def passed(self, seen: int, warm_up: int) -> bool:
        """Step `seen` of the warm-up ended; return whether the job has several ranks.

        Looks for the job's process group: it may be made long after torch was imported. `least` is
        then the step at whose end the ranks meet, and the last ones before it tell their pace.
        """
        if self._meeting is None:
            self.least = warm_up
            dist = process_group()
            if dist is None or dist.get_world_size() < 2:
                return False
            self.rank, self.ranks = rank(), world_size()
            self._meeting = Meeting(_store(), self.rank, self.ranks)
            self.least = max(seen, warm_up) + PACED_STEPS
        if seen == self.least - PACED_STEPS:
            self._pace_begins(seen)
        return True

    @property
    def here(self) -> int:
        """How many ranks write into this run's folder."""
        if self.agreement is not None and str(self._run_dir) in self.agreement.places:
            return self.agreement.places.count(str(self._run_dir))
        return ranks_here()

    @property
    def nodes(self) -> int:
        """How many nodes the job runs on."""
        places = set() if self.agreement is None else set(self.agreement.places) - {None}
        return max(1, len(places) or self.ranks // max(1, self.here))

    def _pace_begins(self, seen: int) -> None:
        facts.synchronize(self._torch)  # the device is through with the steps before
        self._began, self._began_ns = seen, perf_counter_ns()

    def meet(
        self, seen: int, step: StepTimes, feed: Feed, plan: SlicePlan, *, settled: bool
    ) -> SlicePlan:
        """Agree with the other ranks at the end of step `seen`; return the plan that holds.

        Once, or again a few steps later while one of them is not settled yet.
        """
        if self._meeting is None or self.agreement is not None:
            return plan
        facts.synchronize(self._torch)
        mine = Proposal(
            step_ns=(perf_counter_ns() - self._began_ns) / max(1, seen - self._began),
            warm_up=feed.steps_to_use_up(seen),
            turn=feed.workers // math.gcd(feed.workers, step.batches or 1) or 1,
            place=str(self._run_dir),
            settled=settled,
        )
        self._met += 1
        found = self._meeting.agree(f"meeting-{self._met}", mine, plan)
        if found.again:
            self.least = seen + PACED_STEPS
            self._pace_begins(seen)
            return plan
        self.agreement, self._open_at = found, seen + found.warm_up
        return replace(plan, steps=found.steps, min_window_s=0.0, max_window_s=math.inf)

    def opens(self, seen: int) -> bool:
        """Whether the window opens at the end of step `seen`."""
        return self.agreement is not None and seen >= self._open_at

    def part(self, seen: int) -> None:
        """What a step is must be found out anew: the ranks will meet again."""
        self.agreement = None
        if self._meeting is not None:
            self._pace_begins(seen)

    @property
    def profiled(self) -> int | None:
        """The steps under the profiler; None for one rank alone."""
        return None if self.agreement is None else self.agreement.profiled

    def end(self) -> None:
        """Wait a bounded time for the others: none may be left in a collective, or ended early."""
        if self._meeting is None:
            wait_for_results(self._run_dir, self.here)
            return
        missing = () if self.agreement is None else self.agreement.missing
        self._meeting.end([n for n in range(self.ranks) if n not in missing])

    def warnings(self) -> list[list[str]]:
        """Say where the ranks did not come together."""
        found = self.agreement
        if found is None:
            return []
        if found.alone is not None:
            return [["ranks_apart", found.alone]]
        if found.missing:
            who = ", ".join(map(str, found.missing))
            return [["rank_missing", f"rank {who} trained no steps beside the others"]]
        return []


def _store() -> Any:
    """Return the store through which the ranks found each other; None where torch has none."""
    from torch.distributed import distributed_c10d

    # Not public; where it is gone, the ranks take the plan's own numbers, which are the same.
    find = getattr(distributed_c10d, "_get_default_store", None)
    return None if find is None else find()
