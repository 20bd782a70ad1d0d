"""The step clock: from events in the training process to steps. Standard library only.

A step ends when the outermost of optimizer step and GradScaler.step returns, at the last of a
period of several optimizers. Between two ends every nanosecond belongs to the innermost open span
(fetch, backward, optimizer) or to the rest, so the parts sum to the step exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns

LONGEST_PERIOD = 16
FETCH, BACKWARD, OPTIMIZER = 0, 1, 2


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step on the host's clock, in nanoseconds; `samples` None: nobody counted them."""

    end_ns: int
    step_ns: int
    fetch_ns: int
    backward_ns: int
    optimizer_ns: int
    batches: int
    micro_batches: int
    samples: int | None
    mixed: bool

    @property
    def row(self) -> tuple[int | None, ...]:
        """The step as the slice record has it (agent/records.py)."""
        return (
            self.step_ns, self.fetch_ns, self.backward_ns, self.optimizer_ns,
            self.batches, self.micro_batches, self.samples,
        )  # fmt: skip


def period_of(ids: list[int]) -> int | None:
    """Return the period in which optimizers take turns, or None while it cannot be told.

    One optimizer alone is period 1 at once. Several: the smallest p of at most 16 that the last
    three periods repeat, with every optimizer seen lately in it; looking at the tail only lets a
    warm-up of one optimizer pass.
    """
    if not ids:
        return None
    if len(set(ids)) == 1:
        return 1
    for p in range(2, LONGEST_PERIOD + 1):
        tail = ids[-3 * p :]
        if (
            len(tail) == 3 * p
            and tail[:p] == tail[p : 2 * p] == tail[2 * p :]
            and len(set(tail)) > 1
        ):
            return p
    return None


class StepClock:
    """Fed by the hooks; `end_update` returns a step when one ended.

    Single-threaded by design: the hooks call it from the thread that trains.
    """

    def __init__(self) -> None:
        self.updates: list[int] = []
        self._period: int | None = None
        self._phase = 0
        self._spans = [0, 0, 0]
        self._stack: list[list[int]] = []
        self._start_ns = perf_counter_ns()
        self._batches = 0
        self._micro = 0
        self._samples: int | None = None
        self._forwards = [0, 0]

    @property
    def period(self) -> int | None:
        """Optimizer updates in one step; None while irregular."""
        return self._period

    def settle(self) -> int | None:
        """Decide the period from the updates so far and align steps to it."""
        self._period = period_of(self.updates)
        if self._period is not None:
            self._phase = len(self.updates) % self._period
        return self._period

    def open(self, kind: int) -> None:
        """A span of this kind begins."""
        self._stack.append([kind, perf_counter_ns(), 0])

    def close(self) -> None:
        """The innermost span ends."""
        kind, start, inner = self._stack.pop()
        took = perf_counter_ns() - start
        self._spans[kind] += took - inner
        if self._stack:
            self._stack[-1][2] += took

    def fetched(self, samples: int | None) -> None:
        """A batch arrived with this many samples."""
        self._batches += 1
        if samples is not None:
            self._samples = (self._samples or 0) + samples

    def forward(self, *, training: bool) -> None:
        """The root module ran forward, for training or (no gradients, eval mode) not."""
        self._forwards[training] += 1

    def backward_done(self) -> None:
        """One backward pass ended: a micro-batch."""
        self._micro += 1

    def end_update(self, optimizer: int) -> StepTimes | None:
        """An optimizer update returned; return the step if this was its last update."""
        self.updates.append(optimizer)
        if self._period is not None and (len(self.updates) - self._phase) % self._period:
            return None
        return self._end_step()

    def _end_step(self) -> StepTimes:
        now = perf_counter_ns()
        step = StepTimes(
            now, now - self._start_ns, self._spans[FETCH], self._spans[BACKWARD],
            self._spans[OPTIMIZER], self._batches, self._micro,
            self._samples, self._forwards[0] > 0,
        )  # fmt: skip
        self._begin(now)
        return step

    def restart(self) -> None:
        """Begin the next step now: the time since the last end (set-up of ours) is nobody's."""
        self._begin(perf_counter_ns())

    def _begin(self, now: int) -> None:
        self._start_ns = now
        self._spans = [0, 0, 0]
        self._batches = self._micro = 0
        self._samples = None
        self._forwards = [0, 0]


def drop_mixed(steps: list[StepTimes]) -> list[StepTimes]:
    """Leave out steps with an evaluation in them, unless most have one (a teacher, EMA)."""
    mixed = sum(s.mixed for s in steps)
    if mixed * 2 > len(steps):
        return steps
    return [s for s in steps if not s.mixed]
