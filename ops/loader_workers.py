"""Change a DataLoader's workers in place, with the samples in the order that the job wrote.

Three methods of torch's loader are wrapped while a changed loader lives, acting for such loaders
alone. Standard library and torch.
"""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as module

from aiak_tune.ops.dataset_scan import state_of

CONTEXT = "_DataLoader__multiprocessing_context"
SETTINGS = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers", CONTEXT)


class Watch:
    """A changed loader: what it was, and the batches that its worker processes made."""

    def __init__(self, loader: DataLoader[Any], settings: dict[str, Any]) -> None:
        self.before = {name: getattr(loader, name) for name in SETTINGS}
        self.settings = settings
        # Torch draws a seed for each new iterator, and none where workers persist: without this
        # draw the second epoch is shuffled otherwise (INJECTION.md section 5).
        self.redraw = bool(settings["persistent_workers"] and not loader.persistent_workers)
        self.dataset_state = state_of(loader.dataset) if self.redraw else None
        self.batches = 0

    def epoch(self, loader: DataLoader[Any]) -> None:
        """Let persistent workers go where the job has changed its dataset since they started."""
        if self.dataset_state is None or loader._iterator is None:
            return
        now = state_of(loader.dataset)
        if now != self.dataset_state:
            self.dataset_state = now
            loader._iterator = None


WATCHED: dict[int, tuple[weakref.ref[Any], Watch]] = {}  # by id: a loader may define __eq__


def watch_of(loader: object) -> Watch | None:
    """Return the record of a changed loader."""
    entry = WATCHED.get(id(loader))
    return None if entry is None else entry[1]


def real_loader(loader: Any) -> DataLoader[Any] | None:
    """Return the loader whose iterator makes the batches: accelerate wraps it in another."""
    inner = vars(loader).get("base_dataloader", loader) if hasattr(loader, "__dict__") else None
    return inner if isinstance(inner, DataLoader) else None


def change_workers(
    loader: DataLoader[Any], *, workers: int, prefetch: int, pin: bool, persistent: bool
) -> Watch | None:
    """Change the loader from its next iterator on; None where that is not safe or changes nothing.

    Args:
        loader: not yet iterated with persistent workers.
        workers: processes; 0 brings the work back into the main process.
        prefetch: batches that each worker keeps ready.
        pin: page-locked batches, where there is an accelerator.
        persistent: keep the processes from epoch to epoch; what the job keeps stays kept.
    """
    if not can_start(loader, workers):
        return None
    settings: dict[str, Any] = {
        "num_workers": workers,
        "prefetch_factor": prefetch if workers else None,
        "pin_memory": loader.pin_memory or (pin and torch.accelerator.is_available()),
        "persistent_workers": bool(workers and (persistent or loader.persistent_workers)),
        CONTEXT: getattr(loader, CONTEXT),
    }
    if all(getattr(loader, name) == value for name, value in settings.items()):
        return None
    if workers and not loader.num_workers and settings[CONTEXT] is None:
        # Named, since torch would fix the process's default start method by asking for it, and
        # the job's own set_start_method would then raise.
        settings[CONTEXT] = torch.multiprocessing.get_context("fork")
    watch = Watch(loader, settings)
    key = id(loader)
    install()
    WATCHED[key] = (weakref.ref(loader, lambda _: WATCHED.pop(key, None)), watch)
    put(loader, settings)
    return watch


def can_start(loader: DataLoader[Any], workers: int) -> bool:
    """Whether this process can give the loader that many workers from its next iterator on."""
    if loader._iterator is not None or watch_of(loader) is not None:
        return False  # running workers keep their settings
    if workers == 0:
        return not loader.persistent_workers and loader.timeout == 0
    if multiprocessing.current_process().daemon:
        return False  # a daemonic process may have no children
    # A script that never started a process may lack what spawn needs: a guarded main module,
    # objects that can be pickled.
    return loader.num_workers > 0 or start_method() == "fork"


def start_method() -> str:
    """Return how processes start by default, without fixing it for the job."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def put(loader: DataLoader[Any], settings: dict[str, Any]) -> None:
    """Set attributes past DataLoader's own guard, which refuses some after construction."""
    for name, value in settings.items():
        object.__setattr__(loader, name, value)


def restore(loader: DataLoader[Any], watch: Watch) -> None:
    """Put the loader back as the job made it; workers that persist for us end."""
    WATCHED.pop(id(loader), None)
    put(loader, watch.before)
    if watch.redraw:
        loader._iterator = None
    if not WATCHED:
        uninstall()


ORIGINALS: dict[tuple[type, str], Any] = {}
WRAPPERS: dict[tuple[type, str], Any] = {}


def install() -> None:
    """Wrap the three methods, once."""
    for cls, name, wrap in (
        (DataLoader, "__iter__", wrap_iter),
        (module._BaseDataLoaderIter, "_reset", wrap_reset),
        (module._MultiProcessingDataLoaderIter, "_next_data", wrap_next_data),
    ):
        if (cls, name) not in ORIGINALS:
            ORIGINALS[cls, name] = original = vars(cls)[name]
            WRAPPERS[cls, name] = wrapper = wrap(original)
            setattr(cls, name, wrapper)


def uninstall() -> None:
    """Take the wrappers away, except one that somebody has wrapped again; it only passes on."""
    for (cls, name), wrapper in list(WRAPPERS.items()):
        if vars(cls)[name] is wrapper:
            setattr(cls, name, ORIGINALS.pop((cls, name)))
            del WRAPPERS[cls, name]


def wrap_iter(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `DataLoader.__iter__`: an epoch begins."""

    def __iter__(self: DataLoader[Any]) -> Any:
        watch = watch_of(self)
        if watch is not None:
            watch.epoch(self)
        return original(self)

    return __iter__


def wrap_reset(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the iterator's `_reset`, which every epoch of worker processes begins with."""

    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        original(self, loader, first_iter)
        watch = watch_of(loader)
        self._aiak_watch = watch
        # Here, as in a new iterator: after the sampler's iterator, before its first index.
        if watch is not None and watch.redraw and not first_iter:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)

    return _reset


def wrap_next_data(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the worker iterator's `_next_data`: one batch came from a worker."""

    def _next_data(self: Any) -> Any:
        data = original(self)
        watch = self.__dict__.get("_aiak_watch")
        if watch is not None:
            watch.batches += 1
        return data

    return _next_data
