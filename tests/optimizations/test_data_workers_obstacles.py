"""What forbids other workers: found in real datasets, said in a sentence, respected by `apply`."""

from __future__ import annotations

import io
import random
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from aiak_tune.optimizations.catalog import by_name
from aiak_tune.optimizations.data_workers import obstacles

ENTRY = by_name["data-workers"]


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index])


def loader_of(dataset: Dataset[Any] | None = None, **more: Any) -> DataLoader[Any]:
    return DataLoader(dataset or Numbers(), batch_size=4, shuffle=True, **more)


def transform(**held: Any) -> None:
    """Stands for a job's own function."""


RNG = random.Random(0)


class Drawing(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([RNG.random(), random.random()])


class Held(Numbers):
    def __init__(self, **held: Any) -> None:
        super().__init__()
        self.transforms = [partial(transform, **held)]
        self.inner = Numbers()


class Copies(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(10)


class Shares(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        yield from range(0 if info is None else info.id, 10, 1 if info is None else 2)


class OwnIterators(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        return super()._get_iterator()


@pytest.mark.parametrize(
    ("loader", "word"),
    [
        (lambda: loader_of(Held(file=open(__file__))), "open file"),  # noqa: SIM115
        (lambda: loader_of(Held(link=socket.socket())), "socket"),
        (lambda: loader_of(Held(rng=random.Random(0))), "random generator"),
        (lambda: loader_of(Held(rng=np.random.default_rng(0))), "random generator"),
        (lambda: loader_of(Held(rng=torch.Generator())), "random generator"),
        # B21: each worker would have a copy of it, and repeat the others' draws.
        (lambda: loader_of(Drawing()), "RNG, which Drawing.__getitem__ uses, is a random"),
        # B23: n workers would give n copies of each sample, an epoch n times as long.
        (lambda: DataLoader(Copies(), batch_size=2), "get_worker_info"),
        (lambda: DataLoader(Shares(), batch_size=None), "whole batches"),
        (lambda: loader_of(in_order=False, num_workers=1), "in_order"),
        (lambda: OwnIterators(Numbers()), "its own iterators"),
        (lambda: [1, 2, 3], "no DataLoader"),
    ],
)
def test_what_forbids_other_workers_is_said_and_respected(loader: Any, word: str) -> None:
    made = loader()
    found = obstacles(made)
    assert len(found) == 1 and word in found[0]
    assert ENTRY.apply(made, {"num_workers": 2}) is None


def test_no_false_alarm_on_ordinary_datasets(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "data.bin", mode="w+", shape=(8,))
    for dataset in (
        Numbers(),
        torch.utils.data.Subset(Numbers(), range(8)),
        torch.utils.data.TensorDataset(torch.zeros(8, 2)),
        Held(path="x", draw=random.random, memory=io.BytesIO(b""), mapped=mapped),
        list(range(8)),
    ):
        assert obstacles(DataLoader(dataset)) == ()  # type: ignore[arg-type]
    assert obstacles(DataLoader(Shares(), batch_size=2)) == ()


def test_the_scan_is_bounded() -> None:
    big = Held(items=[object() for _ in range(10**5)])
    big.tree = {str(i): {str(j): [j] * 50 for j in range(200)} for i in range(200)}  # type: ignore
    assert obstacles(loader_of(big)) == ()
