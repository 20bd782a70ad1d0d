"""Objects of libraries that are not quite torch's own: subclasses, lazy layers, endless loaders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import QUICK, Points, column, guesting, net, record_of, rows, train
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from aiak_tune.agent.loaders import watch_loaders
from aiak_tune.selector.breakdown import SAMPLES

PLAN = replace(QUICK, parity=3, seed=0)


class Image(Tensor):
    """As MONAI's MetaTensor: it knows its own shape, and refuses what would change it."""

    def __getitem__(self, index: Any) -> Any:
        raise IndexError("an image is indexed by channel, height and width")

    def reshape(self, *shape: Any) -> Any:
        raise ValueError("an image is not reshaped")


def images(samples: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    x, y = default_collate(samples)
    return [x.as_subclass(Image), y]


def test_batches_of_a_tensor_subclass(tmp_path: Path) -> None:
    def job(collate: Any) -> None:
        torch.manual_seed(0)
        model = net()
        loader = DataLoader(Points(), batch_size=8, collate_fn=collate)
        train(loader, model, torch.optim.SGD(model.parameters(), lr=1e-3))

    record = record_of(tmp_path, lambda: job(images), PLAN)
    assert column(record, SAMPLES) == [8] * 6
    plain = record_of(tmp_path, lambda: job(None), PLAN)
    assert record.batch_hashes == plain.batch_hashes and len(set(plain.batch_hashes)) == 3


class Strange(Tensor):
    """Nothing may be done with it but what the model does."""

    def detach(self) -> Any:
        raise KeyError("not this one")


def test_a_batch_that_cannot_be_read_is_no_fault(tmp_path: Path) -> None:
    def collate(samples: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        x, y = default_collate(samples)
        return [x, y, torch.zeros(2).as_subclass(Strange)]

    def job() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for x, y, _ in DataLoader(Points(), batch_size=8, collate_fn=collate):
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()

    assert len(rows(record_of(tmp_path, job, PLAN))) == 6


def test_a_lazy_model_is_a_root_once_it_has_weights(tmp_path: Path) -> None:
    def job() -> None:
        model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        train(DataLoader(Points(), batch_size=8), model, optimizer)

    record = record_of(tmp_path, job)
    assert record.facts["model"]["parameters"] == 4 * 8 + 8 + 8 + 1
    assert record.moved


class Endless(DataLoader[Any]):
    """As in ultralytics: one iterator for all epochs, made past `DataLoader.__iter__`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.iterator: Any = None

    def __iter__(self) -> Any:
        if self.iterator is None:
            self.iterator = self._get_iterator()
        for _ in range(len(self)):
            yield next(self.iterator)


def test_a_loader_that_gets_its_iterator_itself(tmp_path: Path) -> None:
    def job() -> None:
        model = net()
        loader = Endless(Points(), batch_size=8)
        train(loader, model, torch.optim.SGD(model.parameters(), lr=1e-3))

    settings = {"data-workers": {"num_workers": 1, "prefetch_factor": 2}}
    record = record_of(tmp_path, job, settings=settings)
    assert record.facts["loader"]["class"] == "Endless"
    assert record.facts["loader"]["num_workers"] == 0
    assert record.effects["data-workers"], "the setting came before the iterator"


def test_a_loader_that_starts_is_told_once(tmp_path: Path) -> None:
    class Listener:
        def __init__(self) -> None:
            self.told: list[Any] = []

        def loader_started(self, loader: Any) -> None:
            self.told.append(loader)

    class Outer(DataLoader[Any]):
        """Its epoch runs over another loader's."""

        def _get_iterator(self) -> Any:
            next(iter(inner))
            return super()._get_iterator()

    def first(loader: Iterator[Any]) -> None:
        next(loader)

    inner, listener = DataLoader(Points(8)), Listener()
    outer, plain, endless = Outer(Points(8)), DataLoader(Points(8)), Endless(Points(8))
    with guesting(tmp_path):
        watch_loaders(listener)
        for loader in (plain, outer, endless):
            first(iter(loader))
    assert listener.told == [plain, outer, inner, endless]


@pytest.mark.parametrize("enabled", [True, False])
def test_autocast_inside_the_model_is_the_jobs_own(tmp_path: Path, enabled: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x: Tensor) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                return self.inner(x).float()

    def job() -> None:
        model = Model()
        loader = DataLoader(Points(), batch_size=8)
        train(loader, model, torch.optim.SGD(model.parameters(), lr=1e-3))

    assert record_of(tmp_path, job).facts["amp"] is enabled


@pytest.mark.parametrize("again", [True, False])
def test_a_loader_over_a_dataset_made_anew_is_of_the_same_kind(tmp_path: Path, again: bool) -> None:
    """Epochs of 12 steps; a held-out set of another length is another kind."""
    workers: list[int] = []

    def job() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for epoch in range(9):
            size = 96 if again or epoch == 0 else 88
            loader = DataLoader(Points(size), batch_size=8, shuffle=True)
            batches = iter(loader)
            workers.append(loader.num_workers)
            train(batches, model, optimizer, epochs=1)

    settings = {"data-workers": {"num_workers": 1, "prefetch_factor": 2}}
    record_of(tmp_path, job, replace(QUICK, warmup=12, steps=12), settings)
    assert workers[:2] == [1, 1 if again else 0]
