"""The counted window of a simple job: what every step costs there, cut to the least.

One optimizer, no GradScaler, no step inside a step: then a step needs two clock readings a fetch,
one at its end, and a look at whether gradients are on. The hooks ask `on` first. Spans of
backward and optimizer are left to the warm-up. (Called once a step each, between kernels that
fill the caches, Python costs several times what a tight loop shows: every call counts.)
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from aiak_tune.profiles.clock import StepTimes

Switch = Callable[[bool], None]


class Express:
    """State of the window's short path; the hooks add to it, `end` makes a step of it."""

    __slots__ = (
        "asides", "batches", "countable", "fetch_ns", "last_ns", "micro", "on", "only",
        "samples", "switches",
    )  # fmt: skip

    def __init__(self) -> None:
        self.on = False
        self.last_ns = self.only = self.micro = 0
        self.switches: list[Switch] = []  # told True when hooks of theirs are not needed
        self._clear()

    def start(self, now: int, optimizer: int, micro_batches: int) -> None:
        """Take the short path; a step begins at `now`, and `optimizer` is the only one to step."""
        self.last_ns, self.only, self.micro = now, optimizer, micro_batches
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

    def _clear(self) -> None:
        self.fetch_ns = self.batches = self.samples = 0
        self.countable = True
        self.asides = [0, 0, 0]

    def end(self) -> StepTimes:
        """A step ended."""
        now = perf_counter_ns()
        step = StepTimes(
            now, now - self.last_ns, self.fetch_ns, 0, 0, self.batches, self.micro,
            self.samples if self.batches and self.countable else None, tuple(self.asides),
        )  # fmt: skip
        self.last_ns = now
        self._clear()
        return step
