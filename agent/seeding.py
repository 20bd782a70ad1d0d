"""Same randomness in two runs: seeds at the start, samples seeded by their batch, one-ulp shifts.

Only in slices. A batch of the first `parity` ones is made from a seed that its own indices give,
with the process's random state put back behind it: then it is the same whether the training
process or any of n workers makes it, and losses of two runs can be compared.
"""

from __future__ import annotations

import functools
import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiak_tune.agent.facts import local
from aiak_tune.agent.guest import GUEST

# A step may have several micro-batches: this many batches are seeded for each step compared.
BATCHES_A_STEP = 8


def seed_all(torch: Any, seed: int) -> None:
    """Seed torch, random and (where the process has it) numpy."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


@contextmanager
def kept_randomness(torch: Any) -> Iterator[None]:
    """Put the CPU generators of torch, random and numpy back as they were."""
    numpy = sys.modules.get("numpy")
    before = torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        if numpy is not None and before[2] is not None:
            numpy.random.set_state(before[2])


@contextmanager
def borrowed_randomness(torch: Any, seed: int) -> Iterator[None]:
    """Seed everything inside, and put the CPU generators back as they were behind it."""
    numpy = sys.modules.get("numpy")
    with kept_randomness(torch):
        # The CPU generator alone: torch.manual_seed would reseed the device's too.
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
        yield


class BatchSeeding:
    """Batches made from their own seeds while it is on, in this process and in later forks."""

    def __init__(self) -> None:
        self.on = True


def seed_batches(torch: Any, steps: int, seed: int) -> BatchSeeding:
    """Make the first batches of an epoch, for this many steps, from their own seeds.

    Worker processes do not hear when those steps are over, so each fetcher also stops by itself
    at its share of `BATCHES_A_STEP` batches a step.
    """
    from torch.utils.data import _utils

    seeding, batches = BatchSeeding(), steps * BATCHES_A_STEP

    def patch(cls: Any) -> None:
        plain = cls.fetch

        @functools.wraps(plain)
        def fetch(self: Any, index: Any) -> Any:
            number = self.__dict__.setdefault("_aiak_fetches", 0)
            self._aiak_fetches = number + 1
            info = torch.utils.data.get_worker_info()
            workers, worker = (info.num_workers, info.id) if info else (1, 0)
            if not seeding.on or number * workers + worker >= batches:
                return plain(self, index)
            text = f"{seed} {index}".encode()
            own = int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")
            with borrowed_randomness(torch, own):
                return plain(self, index)

        cls.fetch = fetch

        def leave() -> None:
            if cls.fetch is fetch:
                cls.fetch = plain

        GUEST.leave.append(leave)

    # Iterable datasets draw in a stream: there is no index to seed a batch by.
    patch(_utils.fetch._MapDatasetFetcher)
    return seeding


def disturb(torch: Any, module: Any, size: float, seed: int, done: set[int]) -> None:
    """Move each trainable weight by one unit in the last place of relative size `size`.

    The unit is that of the parameter's own dtype where this is coarser: a smaller one would move
    nothing. Zeros stay, as in any rounding. `done` has the ids of those moved before: two roots
    may share some.
    """
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            if not parameter.requires_grad or not parameter.is_floating_point():
                continue
            if id(parameter) in done:
                continue
            done.add(id(parameter))
            own = local(parameter)
            unit = max(size, torch.finfo(own.dtype).eps)
            generator = torch.Generator(device=own.device)
            generator.manual_seed(seed * 100_003 + number)
            signs = torch.randint(0, 2, own.shape, generator=generator, device=own.device)
            own.mul_(1 + unit * (2.0 * signs - 1).to(own.dtype))
