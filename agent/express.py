"""The counted window of a simple job: what every step costs there, cut to the least.

One optimizer, no GradScaler, no step inside a step: then a step needs two clock readings a fetch,
one at its end, and a look at whether gradients are on. The hooks ask `on` first and add to the
fields here; steps are kept as plain tuples until the window is full. Spans of backward and
optimizer are left to the warm-up. (Run once a step, between kernels that fill the caches, Python
costs several times what a tight loop shows: every call counts.)
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from aiak_tune.profiles.clock import NOTHING, StepTimes

Switch = Callable[[bool], None]


class Express:
    """State of the window's short path; the hooks add to it, `tick` ends a step."""

    __slots__ = (
        "asides", "batches", "fetch_ns", "look_ns", "micro", "on", "only", "rows", "samples",
        "start_ns", "switches", "uncounted", "want",
    )  # fmt: skip

    def __init__(self) -> None:
        self.on = False
        self.only = self.micro = self.start_ns = self.want = 0
        self.look_ns = 0.0
        self.rows: list[tuple[int, int, int, int, int, tuple[int, ...]]] = []
        self.switches: list[Switch] = []  # told True when hooks of theirs are not needed
        self.asides: tuple[int, ...] = NOTHING
        self._clear()

    def start(self, now: int, optimizer: int, micro_batches: int) -> None:
        """Take the short path; a step begins at `now`, and `optimizer` is the only one to step."""
        self.start_ns, self.only, self.micro = now, optimizer, micro_batches
        self.rows = []
        self._clear()
        for switch in self.switches:
            switch(True)
        self.on = True

    def stop(self) -> None:
        """Go back to the full hooks."""
        if self.on:
            self.on = False
            for switch in self.switches:
                switch(False)

    def aside(self, kind: int) -> None:
        """Something of this kind happened that may be an evaluation."""
        counts = list(self.asides)
        counts[kind] += 1
        self.asides = tuple(counts)

    def _clear(self) -> None:
        self.fetch_ns = self.batches = self.samples = self.uncounted = 0
        self.asides = NOTHING

    def tick(self) -> bool:
        """A step ended; return whether it is time for a look at the whole."""
        now = perf_counter_ns()
        rows = self.rows
        rows.append((now, self.fetch_ns, self.batches, self.samples, self.uncounted, self.asides))
        self.fetch_ns = self.batches = self.samples = self.uncounted = 0
        self.asides = NOTHING
        return now >= self.look_ns or len(rows) >= self.want

    def take(self) -> list[StepTimes]:
        """Return the steps since the last call."""
        steps, last = [], self.start_ns
        for now, fetch_ns, batches, samples, uncounted, asides in self.rows:
            counted = samples if batches and not uncounted else None
            steps.append(
                StepTimes(now, now - last, fetch_ns, 0, 0, batches, self.micro, counted, asides)
            )
            last = now
        self.start_ns, self.rows = last, []
        return steps
