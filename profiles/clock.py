"""The step clock: from events in the training process to steps. Standard library only.

A step ends when the outermost of optimizer step and GradScaler.step returns, at the last of a
period of several optimizers, or where the job marks it. Between two ends every nanosecond belongs
to the innermost open span (fetch, backward, optimizer) or to the rest, so the parts sum to the step
exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import NamedTuple

LONGEST_PERIOD = 16
FETCH, BACKWARD, OPTIMIZER = 0, 1, 2
# What a step may hold beside training; whether it is an evaluation, other steps tell.
# ROLLOUT: a forward without gradients, in training mode.
FORWARD_NO_GRAD, FORWARD_EVAL_MODE, BATCH_NO_GRAD, ROLLOUT = range(4)
Asides = tuple[int, ...]
NOTHING: Asides = (0, 0, 0, 0)


class StepTimes(NamedTuple):
    """One step on the host's clock, in nanoseconds; `samples` None: nobody counted them.

    `asides` counts the root's forwards in eval mode, without and with gradients, batches fetched
    without gradients, and forwards without gradients in training mode. A named tuple: one is made
    in every step of the window, and a frozen dataclass takes 2 µs longer.
    """

    end_ns: int
    step_ns: int
    fetch_ns: int
    backward_ns: int
    optimizer_ns: int
    batches: int
    micro_batches: int
    samples: int | None
    asides: Asides = NOTHING

    @property
    def row(self) -> tuple[int | None, ...]:
        """The step as the slice record has it (agent/records.py)."""
        return (
            self.step_ns, self.fetch_ns, self.batches, self.micro_batches, self.samples,
        )  # fmt: skip


def period_of(ids: Sequence[int]) -> int | None:
    """Return the period in which optimizers take turns, or None while it cannot be told.

    One optimizer alone is period 1 at once, after others only when it has been alone for long.
    Several: the smallest p of at most 16 that the last three periods repeat; looking at the tail
    only lets a warm-up of one optimizer pass.
    """
    if not ids:
        return None
    if len(set(ids)) == 1 or (
        len(ids) > 2 * LONGEST_PERIOD and len(set(ids[-2 * LONGEST_PERIOD :])) == 1
    ):
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
        self._cycle: list[int] = []
        self._at = 0  # updates of the current cycle that are done
        self._marked = False
        self._regular = True
        self._spans = [0, 0, 0]
        self._open: list[int] = []
        self._start_ns = self._last_ns = perf_counter_ns()
        self._begin(self._start_ns)

    @property
    def period(self) -> int | None:
        """Optimizer updates (or marks) in one step; None while irregular."""
        return len(self._cycle) or None

    @property
    def marked(self) -> bool:
        """Whether the job says itself where its steps end."""
        return self._marked

    def mark(self) -> None:
        """From now on steps end where `end_marked` is called, and nowhere else."""
        self._marked = True
        self._cycle, self._at, self._regular = [0], 0, True

    @property
    def between_steps(self) -> bool:
        """Whether the last update was the last one of its step."""
        return self._at == 0

    @property
    def regular(self) -> bool:
        """Whether every update since `settle` was by the optimizer whose turn it was."""
        return self._regular

    def settle(self) -> int | None:
        """Decide the period from the updates so far and align steps to it.

        A step begins with the optimizer that stepped first of all, where the turns have it.
        """
        if self._marked:
            return 1
        self._cycle, self._at, self._regular = [], 0, True
        p = period_of(self.updates)
        if p is None:
            return None
        tail = self.updates[-p:]
        first = self.updates[0] if self.updates[0] in tail else tail[0]
        begin = next((i for i in range(p) if tail[i] == first != tail[i - 1]), 0)
        self._cycle = tail[begin:] + tail[:begin]
        self._at = (p - begin) % p
        return p

    def open(self, kind: int) -> None:
        """A span of this kind begins."""
        now = perf_counter_ns()  # as in _charge: a call less in what runs six times a step
        if self._open:
            self._spans[self._open[-1]] += now - self._last_ns
        self._last_ns = now
        self._open.append(kind)

    def open_update(self) -> None:
        """An optimizer's step begins."""
        self.open(OPTIMIZER)
        self._before_update = self._spans[OPTIMIZER]

    def close(self) -> None:
        """The innermost span ends."""
        now = perf_counter_ns()
        if self._open:
            self._spans[self._open.pop()] += now - self._last_ns
        self._last_ns = now

    def _charge(self) -> int:
        """Give the time since the last event to the innermost open span."""
        now = perf_counter_ns()
        if self._open:
            self._spans[self._open[-1]] += now - self._last_ns
        self._last_ns = now
        return now

    def fetched(self, samples: int | None) -> None:
        """A batch arrived with this many samples; None: nobody can say."""
        self._batches += 1
        if samples is None:
            self._countable = False
        else:
            self._samples += samples

    def aside(self, kind: int) -> None:
        """Something of these kinds happened that may be an evaluation."""
        self._asides[kind] += 1

    def backward_done(self) -> None:
        """One backward pass ended: a micro-batch.

        Inside an update it was a closure's, and what ran since the update began was no update
        either: the closure's forward.
        """
        self._micro += 1
        if self._open and self._open[-1] == OPTIMIZER:
            self._charge()
            self._spans[OPTIMIZER] = self._before_update

    def gradient_asked(self) -> None:
        """A gradient was taken without backward: a micro-batch where backward is never called."""
        self._asked += 1

    def end_update(self, optimizer: int) -> StepTimes | None:
        """An optimizer update returned; return the step if this was its last update."""
        self.updates.append(optimizer)
        if self._marked:
            return None
        if self._cycle:
            self._regular &= self._cycle[self._at] == optimizer
            self._at = (self._at + 1) % len(self._cycle)
            if self._at and self._regular:
                return None
        return self._end(self._samples if self._batches and self._countable else None)

    def end_marked(self, samples: int | None) -> StepTimes:
        """The job says that its step is done, with so many samples; None: as were fetched."""
        if samples is None and self._batches and self._countable:
            samples = self._samples
        return self._end(samples)

    def _end(self, samples: int | None) -> StepTimes:
        now = self._charge()
        step = StepTimes(
            now, now - self._start_ns, self._spans[FETCH], self._spans[BACKWARD],
            self._spans[OPTIMIZER], self._batches, self._micro or self._asked, samples,
            tuple(self._asides),
        )  # fmt: skip
        self._begin(now)
        return step

    def restart(self) -> int:
        """Begin the next step now, and say when: the time since the last end is nobody's."""
        now = self._charge()
        self._begin(now)
        return now

    def _begin(self, now: int) -> None:
        self._start_ns = now
        self._spans = [0, 0, 0]
        self._before_update = 0  # what updates had taken in this step when the last one began
        self._batches = self._micro = self._asked = self._samples = 0
        self._countable = True
        self._asides = list(NOTHING)
