"""`data-workers` on real loaders: the samples and their order stay, and the way back is exact."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data import dataloader as torch_loader

from aiak_tune.ops import loader_workers
from aiak_tune.optimizations.base import Applied
from aiak_tune.optimizations.catalog import by_name
from aiak_tune.optimizations.data_workers import set_workers

ENTRY = by_name["data-workers"]
SETTINGS = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")


class Numbers(Dataset[torch.Tensor]):
    """Sample i is (i, which process made it)."""

    scale = 1

    def __init__(self, n: int = 24) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        return torch.tensor([index * self.scale, -1 if info is None else info.id])


def loader_of(dataset: Dataset[Any] | None = None, **more: Any) -> DataLoader[Any]:
    return DataLoader(dataset or Numbers(), batch_size=4, shuffle=True, **more)


def epochs(loader: DataLoader[Any], n: int = 2) -> tuple[list[int], torch.Tensor]:
    """The sample numbers of n epochs in order, and the main process's random state after."""
    seen = [int(i) for _ in range(n) for batch in loader for i in batch[:, 0]]
    return seen, torch.get_rng_state()


def generator(seed: int | None) -> torch.Generator | None:
    return None if seed is None else torch.Generator().manual_seed(seed)


def applied(loader: DataLoader[Any], **params: Any) -> Applied:
    got = ENTRY.apply(loader, {"num_workers": 2, "persistent_workers": False} | params)
    assert got is not None
    return got


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("workers", [1, 2])
def test_two_epochs_come_in_the_order_the_job_wrote(
    workers: int, seed: int | None, persistent: bool
) -> None:
    torch.manual_seed(0)
    plain = epochs(loader_of(generator=generator(seed)), 3)
    torch.manual_seed(0)
    loader = loader_of(generator=generator(seed))
    change = applied(loader, num_workers=workers, persistent_workers=persistent)
    changed = epochs(loader, 3)
    assert changed[0] == plain[0]
    assert torch.equal(changed[1], plain[1])
    assert change.effect() == f"18 batches from {workers} worker processes"
    change.undo()


def test_without_the_draw_persistent_workers_would_change_the_order() -> None:
    """The comparison above can fail: torch's own switch fails it."""
    torch.manual_seed(0)
    plain = epochs(loader_of())
    torch.manual_seed(0)
    assert epochs(loader_of(num_workers=2, persistent_workers=True))[0] != plain[0]


def test_another_persistent_loader_keeps_its_own_order() -> None:
    torch.manual_seed(0)
    plain = epochs(loader_of(num_workers=1, persistent_workers=True))
    changed = loader_of()
    change = applied(changed, persistent_workers=True)
    torch.manual_seed(0)
    assert epochs(loader_of(num_workers=1, persistent_workers=True))[0] == plain[0]
    change.undo()


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_the_job_are_changed_in_number_with_the_order_kept(persistent: bool) -> None:
    own: dict[str, Any] = {"num_workers": 1, "persistent_workers": persistent}
    torch.manual_seed(0)
    plain = epochs(loader_of(**own))
    torch.manual_seed(0)
    loader = loader_of(**own)
    change = applied(loader, num_workers=2, prefetch_factor=4)
    assert epochs(loader)[0] == plain[0]
    assert (loader.persistent_workers, loader.prefetch_factor) == (persistent, 4)
    change.undo()


class Elder(Numbers):
    """What a job changes between epochs: the live workers would not see it."""


@pytest.mark.parametrize("name", ["scale", "n"])
def test_a_dataset_changed_between_epochs_reaches_persistent_workers(name: str) -> None:
    def run(loader: DataLoader[Any]) -> list[int]:
        first = epochs(loader, 1)[0]
        setattr(loader.dataset, name, 12)
        return first + epochs(loader, 2)[0]

    torch.manual_seed(0)
    plain = run(DataLoader(Elder(12), batch_size=4, shuffle=True))
    torch.manual_seed(0)
    loader = DataLoader(Elder(12), batch_size=4, shuffle=True)
    change = applied(loader, persistent_workers=True)
    assert run(loader) == plain
    change.undo()


def test_persistent_workers_really_persist() -> None:
    loader = loader_of()
    change = applied(loader, persistent_workers=True)
    epochs(loader, 1)
    iterator: Any = loader._iterator
    pids = [w.pid for w in iterator._workers]
    epochs(loader, 1)
    again: Any = loader._iterator
    assert again is iterator and [w.pid for w in again._workers] == pids
    change.undo()
    processes = iterator._workers
    del iterator, again
    gc.collect()
    assert not any(w.is_alive() for w in processes)


def test_undo_puts_everything_back() -> None:
    loader = loader_of()
    before = dict(vars(loader))
    methods = (
        DataLoader.__iter__,
        torch_loader._BaseDataLoaderIter._reset,
        torch_loader._MultiProcessingDataLoaderIter._next_data,
    )
    for persistent in (False, True):
        change = applied(loader, persistent_workers=persistent)
        epochs(loader, 1)
        change.undo()
        assert vars(loader) == before
    assert not loader_workers.WATCHED
    assert methods == (
        DataLoader.__iter__,
        torch_loader._BaseDataLoaderIter._reset,
        torch_loader._MultiProcessingDataLoaderIter._next_data,
    )
    assert {int(b[0, 1]) for b in loader} == {-1}, "the main process makes batches again"


def test_a_dead_loader_leaves_nothing_behind() -> None:
    loader = loader_of()
    ENTRY.apply(loader, {"num_workers": 1})
    assert loader_workers.WATCHED
    del loader
    gc.collect()
    assert not loader_workers.WATCHED


def test_no_batch_made_by_a_worker_is_no_effect() -> None:
    loader = loader_of()
    change = applied(loader)
    assert change.effect() is None
    change.undo()


def test_values_the_loader_already_has_change_nothing() -> None:
    loader = loader_of(num_workers=2, prefetch_factor=4, persistent_workers=True)
    params = {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True}
    assert ENTRY.apply(loader, params) is None
    assert ENTRY.apply(loader, params | {"persistent_workers": False}) is None


def test_no_workers_means_no_prefetching_and_no_persistence() -> None:
    """B24: DataLoader refuses prefetch_factor and persistent_workers without workers."""
    loader = loader_of(num_workers=2)
    change = set_workers(loader, workers=0, prefetch=4, persistent=True)
    assert change is not None
    assert [getattr(loader, s) for s in SETTINGS] == [0, None, False, False]
    assert len(epochs(loader, 1)[0]) == 24
    change.undo()
    assert [getattr(loader, s) for s in SETTINGS] == [2, 2, False, False]


def test_what_the_job_handed_in_is_kept() -> None:
    batches = [[0, 1, 2], [5], [7, 3]]
    context = multiprocessing.get_context("fork")
    loader = DataLoader(
        Numbers(),
        batch_sampler=batches,
        collate_fn=partial(torch.stack, dim=0),
        num_workers=1,
        multiprocessing_context=context,
        worker_init_fn=worker_init,
    )
    change = applied(loader)
    assert [b[:, 0].tolist() for b in loader] == batches
    assert loader.multiprocessing_context is context and loader.worker_init_fn is worker_init
    change.undo()


def worker_init(worker: int) -> None:
    """Stands for a job's own function."""


def test_the_default_start_method_stays_open_for_the_job() -> None:
    # In a process of its own: here another test may have fixed the start method already.
    code = (
        "import torch, multiprocessing as mp\n"
        "from torch.utils.data import DataLoader\n"
        "from aiak_tune.optimizations.data_workers import set_workers\n"
        "loader = DataLoader(list(range(8)), batch_size=4)\n"
        "assert set_workers(loader, workers=1) is not None\n"
        "assert [b.tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]\n"
        "mp.set_start_method('spawn')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class Own(DataLoader[Any]):
    """A subclass that passes on, as accelerate's fetches one ahead."""

    def __iter__(self) -> Any:
        batches = super().__iter__()
        current = next(batches)
        for ahead in batches:
            yield current
            current = ahead
        yield current


class Outer:
    """As accelerate 1.x wraps a loader in another object."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.base_dataloader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.base_dataloader)


@pytest.mark.parametrize("persistent", [False, True])
def test_subclasses_and_wrapped_loaders(persistent: bool) -> None:
    torch.manual_seed(0)
    plain = epochs(Own(Numbers(), batch_size=4, shuffle=True))[0]
    torch.manual_seed(0)
    shard: Any = Outer(Own(Numbers(), batch_size=4, shuffle=True))
    change = applied(shard, persistent_workers=persistent)
    assert epochs(shard)[0] == plain
    assert change.effect() == "12 batches from 2 worker processes"
    change.undo()


def in_daemon(queue: Any) -> None:
    queue.put(ENTRY.apply(loader_of(), {"num_workers": 2}) is None)


def test_a_daemonic_process_is_left_alone() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=in_daemon, args=(queue,), daemon=True)
    process.start()
    assert queue.get(timeout=30)
    process.join()


def test_running_persistent_workers_are_left_alone() -> None:
    loader = loader_of(num_workers=1, persistent_workers=True)
    epochs(loader, 1)
    assert ENTRY.apply(loader, {"num_workers": 2}) is None


@pytest.mark.parametrize("persistent", [False, True])
def test_by_hand_the_same_batches_come_from_as_many_workers(persistent: bool) -> None:
    params = {
        "num_workers": 2,
        "prefetch_factor": 4,
        "pin_memory": False,
        "persistent_workers": persistent,
    }
    changed, loader = loader_of(), loader_of()
    change = applied(changed, **params)
    exec(ENTRY.by_hand(params), {"loader": loader})
    assert [getattr(loader, s) for s in SETTINGS] == [getattr(changed, s) for s in SETTINGS]
    torch.manual_seed(0)
    plain = epochs(loader_of(), 1)[0]
    torch.manual_seed(0)
    batches = [*loader]
    assert [int(i) for batch in batches for i in batch[:, 0]] == plain
    assert {int(i) for batch in batches for i in batch[:, 1]} == {0, 1}, "made by two workers"
    assert (loader._iterator is not None) is persistent
    change.undo()


def test_by_hand_what_the_job_pins_stays_pinned() -> None:
    loader = loader_of(pin_memory=True)
    exec(ENTRY.by_hand({"num_workers": 1, "pin_memory": False}), {"loader": loader})
    assert loader.pin_memory and loader.num_workers == 1
    exec(ENTRY.by_hand({"num_workers": 1, "pin_memory": True}), {"loader": (plain := loader_of())})
    assert plain.pin_memory
