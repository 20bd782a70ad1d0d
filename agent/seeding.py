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


def seed_all(torch: Any, seed: int) -> None:
    """Seed torch, random and (where the process has it) numpy."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


@contextmanager
def borrowed_randomness(torch: Any, seed: int) -> Iterator[None]:
    """Seed everything inside, and put the CPU generators back as they were behind it."""
    numpy = sys.modules.get("numpy")
    before = torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()
    # The CPU generator alone: torch.manual_seed would reseed the device's too.
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        if numpy is not None and before[2] is not None:
            numpy.random.set_state(before[2])


def seed_batches(torch: Any, batches: int, seed: int) -> None:
    """Make each fetcher's share of an epoch's first `batches` batches from their own seeds."""
    from torch.utils.data import _utils

    def patch(cls: Any) -> None:
        plain = cls.fetch

        @functools.wraps(plain)
        def fetch(self: Any, index: Any) -> Any:
            number = self.__dict__.setdefault("_aiak_fetches", 0)
            self._aiak_fetches = number + 1
            info = torch.utils.data.get_worker_info()
            workers, worker = (info.num_workers, info.id) if info else (1, 0)
            if number * workers + worker >= batches:
                return plain(self, index)
            text = f"{seed} {index}".encode()
            own = int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")
            with borrowed_randomness(torch, own):
                return plain(self, index)

        cls.fetch = fetch

    # Iterable datasets draw in a stream: there is no index to seed a batch by.
    patch(_utils.fetch._MapDatasetFetcher)


def disturb(torch: Any, module: Any, size: float, seed: int) -> None:
    """Move each trainable weight by one unit in the last place of relative size `size`."""
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            if not parameter.requires_grad or not parameter.is_floating_point():
                continue
            generator = torch.Generator(device=parameter.device)
            generator.manual_seed(seed * 100_003 + number)
            signs = torch.randint(
                0, 2, parameter.shape, generator=generator, device=parameter.device
            )
            parameter.mul_(1 + size * (2.0 * signs - 1).to(parameter.dtype))
