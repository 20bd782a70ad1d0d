"""Where torch's DataLoader calls us: a loader starts, a batch arrives with its samples."""

from __future__ import annotations

import functools
from collections import deque
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from aiak_tune.agent.facts import tensors_in
from aiak_tune.agent.guest import guest
from aiak_tune.agent.hooks import LoaderListener, SliceListener, Thread, patch
from aiak_tune.profiles.clock import BATCH_NO_GRAD, FETCH


def watch_loaders(listener: LoaderListener) -> None:
    """Tell when loaders start, also those that get their iterator without `__iter__`."""
    from torch.utils.data import DataLoader

    plain_iter, plain_get = DataLoader.__iter__, DataLoader._get_iterator
    started = guest(listener.loader_started)
    starting: list[Any] = []

    @functools.wraps(plain_iter)
    def __iter__(self: Any) -> Any:
        started(self)
        starting.append(self)
        try:
            return plain_iter(self)
        finally:
            starting.pop()

    @functools.wraps(plain_get)
    def _get_iterator(self: Any) -> Any:
        if not any(loader is self for loader in starting):
            started(self)
        return plain_get(self)

    patch(DataLoader, "__iter__", __iter__)
    patch(DataLoader, "_get_iterator", _get_iterator)


def watch_batches(listener: SliceListener) -> None:
    """Tell each batch with its samples, and time the fetch."""
    import torch
    from torch.utils.data import dataloader

    iterator = dataloader._BaseDataLoaderIter
    plain_next: Any = iterator.__next__
    plain_index: Any = iterator._next_index
    plain_init: Any = iterator.__init__
    clock, express = listener.clock, listener.express
    gradients = torch.is_grad_enabled
    made = guest(listener.iterator_made)

    @guest
    def begin() -> bool:
        if get_ident() != Thread.ident:
            return False
        clock.open(FETCH)
        return True

    @guest
    def arrived(self: Any, batch: Any) -> None:
        sizes = self.__dict__.get("_aiak_sizes")
        clock.fetched(sizes.popleft() if sizes else leading_size(batch))
        listener.batch_arrived(self, batch)

    @guest
    def quickly(self: Any, batch: Any) -> None:
        sizes = self.__dict__.get("_aiak_sizes")
        size = sizes.popleft() if sizes else leading_size(batch)
        express.batches += 1
        if not gradients():
            express.aside(BATCH_NO_GRAD)
        elif size is None:
            express.uncounted += 1
        else:
            express.samples += size

    # Told now: a loader made in the head of a `for` is gone when its first batch arrives.
    @functools.wraps(plain_init)
    def __init__(self: Any, loader: Any) -> None:
        made(self, loader)
        plain_init(self, loader)

    @functools.wraps(plain_next)
    def __next__(self: Any) -> Any:
        if express.on:
            start = perf_counter_ns()
            batch = plain_next(self)
            if get_ident() == Thread.ident:
                express.fetch_ns += perf_counter_ns() - start
            sizes = self.__dict__.get("_aiak_sizes")
            if sizes and gradients():
                express.batches += 1
                express.samples += sizes.popleft()
            else:
                quickly(self, batch)
            return batch
        opened = begin()
        try:
            batch = plain_next(self)
        finally:
            if opened:
                clock.close()
        # The window may have begun while another thread was in its fetch.
        (quickly if express.on else arrived)(self, batch)
        return batch

    @functools.wraps(plain_index)
    def _next_index(self: Any) -> Any:
        index = plain_index(self)
        note_size(self, index)
        return index

    patch(iterator, "__init__", __init__)
    patch(iterator, "__next__", __next__)
    patch(iterator, "_next_index", _next_index)


@guest
def note_size(iterator: Any, index: Any) -> None:
    """Queue the number of samples that a batch's indices name.

    An iterable's index is only the nominal batch (its last one is shorter), and without
    automatic batching an index is one sample, or a list of them.
    """
    own = iterator.__dict__
    if iterator._auto_collation:
        size = None if index and _nominal(index) else len(index)
    else:
        size = len(index) if type(index) is list else None
    if own.get("_send_idx") == 0:
        # A new epoch of persistent workers: what the last one left unread never comes.
        own.pop("_aiak_sizes", None)
    if size is not None:
        own.setdefault("_aiak_sizes", deque()).append(size)


def _nominal(index: Any) -> bool:
    return type(index) is list and index[0] is None


def leading_size(batch: Any) -> int | None:
    """Return the leading dimension of the first tensor in the batch."""
    first = batch
    while type(first) in (tuple, list) and first:
        first = first[0]  # the usual batch, without a walk through all of it
    if not hasattr(first, "dim"):
        tensors = tensors_in(batch)
        first = tensors[0] if tensors else None
    return len(first) if first is not None and first.dim() else None
