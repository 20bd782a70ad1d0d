"""Which of the job's loaders feeds the training, and how many batches it has ready."""

from __future__ import annotations

import math
from typing import Any

from aiak_tune.agent import facts

# Of steps that fetch nothing that we see, so many stand for a batch: batches may come from
# elsewhere (an endless iterator that has kept them, another process) than from a queue.
STEPS_A_BATCH = 4


class Feed:
    """The training loader's kind, as far as nothing speaks against it, and its queue."""

    def __init__(self) -> None:
        self.kind: facts.LoaderKind | None = None
        self.fetched = self.workers = 0
        self._queued = 0

    def met(self, iterator: Any, *, trained: bool) -> None:
        """A batch came of this iterator; `trained`: updates have been seen."""
        if iterator.__dict__.get("_aiak_met"):
            return
        iterator._aiak_met = True
        kind = iterator.__dict__.get("_aiak_kind")
        if kind is None or (kind is not self.kind and trained):
            return
        if kind is not self.kind:
            self.kind, self.fetched = kind, 0
        self.workers = iterator._num_workers
        self._queued = self.workers * iterator._prefetch_factor if self.workers else 0

    def steps_to_use_up(self, steps: int) -> int:
        """Return the steps that use up a full queue, at the pace of the steps so far."""
        if not self._queued:
            return 0
        a_step = max(self.fetched / max(1, steps), 1 / STEPS_A_BATCH)
        return math.ceil((self._queued + 2) / a_step)

    def used_up(self, steps: int) -> bool:
        """Whether the batches that were queued before the first step are gone by now."""
        if not self._queued:
            return True  # made when they are asked for, or there is no loader
        return max(self.fetched, steps // STEPS_A_BATCH) > self._queued + 1
