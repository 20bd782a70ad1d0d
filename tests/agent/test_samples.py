"""Samples of a step: exact for map-style datasets whatever the batches look like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import QUICK, Points, column, net, record_of
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from aiak_tune.selector.breakdown import BATCHES, SAMPLES


@dataclass
class Detections:
    images: Tensor
    boxes: list[Tensor]


def as_dict(items: list[Any]) -> Any:
    return {"mask": torch.ones(1, 3), "x": torch.stack([x for x, _ in items])}


def as_list(items: list[Any]) -> Any:
    return [{"x": x, "boxes": torch.zeros(3, 4)} for x, _ in items]


def time_major(items: list[Any]) -> Any:
    return torch.stack([x for x, _ in items], dim=1)


def as_object(items: list[Any]) -> Any:
    return Detections(torch.zeros(1, 2), [x for x, _ in items])


COLLATES = [as_dict, as_list, time_major, as_object, None]


def sizes_seen(
    tmp_path: Path, loader: Any, steps: int = 8, epochs: int = 100, stop_at: int | None = None
) -> list[int | None]:
    """The samples of each counted step of a loop over the loader."""

    def job() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(epochs):
            for number, _ in enumerate(loader):
                model(torch.ones(1, 4)).mean().backward()
                optimizer.step()
                if number == stop_at:
                    break

    record = record_of(tmp_path, job, replace(QUICK, warmup=2, steps=steps))
    assert column(record, BATCHES) == [1] * len(column(record, BATCHES))
    return column(record, SAMPLES)


def holds(seen: list[int | None], cycle: list[int]) -> bool:
    """Whether what was seen is a stretch of the endless cycle."""
    many = cycle * (len(seen) // len(cycle) + 2)
    return any(many[i : i + len(seen)] == seen for i in range(len(cycle)))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", COLLATES)
def test_any_collate_and_a_last_short_batch(tmp_path: Path, collate: Any, workers: int) -> None:
    loader = DataLoader(Points(18), batch_size=4, collate_fn=collate, num_workers=workers)
    assert holds(sizes_seen(tmp_path, loader), [4, 4, 4, 4, 2])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_batch_sampler_of_varying_batches(tmp_path: Path, workers: int, kind: Any) -> None:
    batches: Any = [kind(range(n)) for n in (1, 5, 2, 7)]
    loader = DataLoader(Points(), batch_sampler=batches, num_workers=workers)
    assert holds(sizes_seen(tmp_path, loader), [1, 5, 2, 7])


def test_epochs_left_early_with_persistent_workers(tmp_path: Path) -> None:
    """What such an epoch leaves unread must not be counted in the next."""
    batches: Any = [list(range(n)) for n in (1, 5, 2, 7, 3, 4)]
    loader = DataLoader(Points(), batch_sampler=batches, num_workers=2, persistent_workers=True)
    assert holds(sizes_seen(tmp_path, loader, stop_at=1), [1, 5])


class Chosen(Points):
    """Takes whole lists of indices, as its own collating."""

    def __getitem__(self, index: Any) -> Any:
        return torch.zeros(3, len(index)) if isinstance(index, list) else super().__getitem__(index)


def test_no_automatic_batching_with_lists_of_indices(tmp_path: Path) -> None:
    sampler = BatchSampler(SequentialSampler(Points(10)), 4, drop_last=False)
    loader = DataLoader(Chosen(10), sampler=sampler, batch_size=None)
    assert holds(sizes_seen(tmp_path, loader), [4, 4, 2])


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.zeros(10, 3)


class Ready(IterableDataset[Tensor]):
    """Makes whole batches by itself."""

    def __iter__(self) -> Iterator[Tensor]:
        yield from (torch.zeros(n, 3) for n in (6, 5, 1))


@pytest.mark.parametrize("workers", [0, 1])
def test_iterable_datasets_count_by_the_leading_dimension(tmp_path: Path, workers: int) -> None:
    loader: Any = DataLoader(Stream(), batch_size=4, num_workers=workers)
    assert holds(sizes_seen(tmp_path, loader), [4, 4, 2])
    loader = DataLoader(Ready(), batch_size=None, num_workers=workers)
    assert holds(sizes_seen(tmp_path, loader), [6, 5, 1])


def test_batches_without_tensors_are_unknown(tmp_path: Path) -> None:
    loader: Any = DataLoader(Stream(), batch_size=4, collate_fn=len)
    assert sizes_seen(tmp_path, loader) == [None] * 8
