"""Where torch calls us: loaders, optimizers, backward, the root module.

Each function installs one kind of hook and registers its removal with GUEST. What the hooks
learn goes to a Listener; classes are patched in place, so names that the job imported before
still work. Costs a few microseconds a step (docs/results/tune.json).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from threading import get_ident, main_thread
from typing import Any, Protocol

from aiak_tune.agent.facts import tensors_in
from aiak_tune.agent.guest import GUEST, guest
from aiak_tune.profiles.clock import BACKWARD, FETCH, OPTIMIZER, StepClock


class Listener(Protocol):
    """What the hooks tell."""

    clock: StepClock
    scaled: bool  # set when a GradScaler steps

    def loader_started(self, loader: Any) -> None:
        """A loader's `__iter__` is about to run, for the first time or again."""
        ...

    def batch_arrived(self, iterator: Any, batch: Any) -> None:
        """A loader gave a batch."""
        ...

    def optimizer_begins(self, optimizer: Any) -> None:
        """An optimizer step is about to run."""
        ...

    def update_ended(self, optimizer: Any, *, ran: bool) -> None:
        """The outermost update returned; `ran` False: a scaler skipped the optimizer."""
        ...

    def loss_seen(self, loss: Any) -> None:
        """Backward was called on this one-element tensor."""
        ...

    def root_called(self, module: Any, args: Any, kwargs: Any, *, training: bool) -> None:
        """The outermost module is about to run forward."""
        ...


class _Thread:
    """The thread that trains: spans of other threads are not its time."""

    ident = main_thread().ident


def _patch(owner: Any, name: str, wrapper: Any) -> None:
    plain = owner.__dict__[name]
    setattr(owner, name, wrapper)
    GUEST.leave.append(lambda: setattr(owner, name, plain))


def watch_loaders(listener: Listener, *, timed: bool = True) -> None:
    """Tell when loaders start, and (`timed`) each batch with its samples."""
    from torch.utils.data import dataloader

    plain_iter = dataloader.DataLoader.__iter__
    started = guest(listener.loader_started)

    @functools.wraps(plain_iter)
    def __iter__(self: Any) -> Any:
        started(self)
        return plain_iter(self)

    _patch(dataloader.DataLoader, "__iter__", __iter__)
    if timed:
        _watch_batches(listener, dataloader._BaseDataLoaderIter)


def _watch_batches(listener: Listener, iterator: Any) -> None:
    plain_next, plain_index = iterator.__next__, iterator._next_index
    plain_init = iterator.__init__
    clock = listener.clock

    @guest
    def begin() -> bool:
        if get_ident() != _Thread.ident:
            return False
        clock.open(FETCH)
        return True

    @guest
    def end(opened: bool) -> None:
        if opened:
            clock.close()

    @guest
    def arrived(self: Any, batch: Any) -> None:
        sizes = self.__dict__.get("_aiak_sizes")
        samples = sizes.popleft() if sizes else _leading(batch)
        clock.fetched(samples)
        listener.batch_arrived(self, batch)

    @guest
    def indexed(self: Any, index: Any) -> None:
        # An iterable's index is only the nominal batch; its last one is shorter.
        if type(index) is list and index and index[0] is not None:
            self.__dict__.setdefault("_aiak_sizes", deque()).append(len(index))

    @functools.wraps(plain_init)
    def __init__(self: Any, loader: Any) -> None:
        self._aiak_loader = loader
        plain_init(self, loader)

    @functools.wraps(plain_next)
    def __next__(self: Any) -> Any:
        opened = begin()
        try:
            batch = plain_next(self)
        finally:
            end(opened)
        arrived(self, batch)
        return batch

    @functools.wraps(plain_index)
    def _next_index(self: Any) -> Any:
        index = plain_index(self)
        indexed(self, index)
        return index

    _patch(iterator, "__init__", __init__)
    _patch(iterator, "__next__", __next__)
    _patch(iterator, "_next_index", _next_index)


def _leading(batch: Any) -> int | None:
    tensors = tensors_in(batch)
    return len(tensors[0]) if tensors and tensors[0].dim() else None


def watch_optimizers(listener: Listener) -> None:
    """Tell when an update begins and when the outermost one ended."""
    from torch.amp import GradScaler
    from torch.optim import optimizer as module

    clock = listener.clock
    depth, ran = [0], [False]

    @guest
    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if depth[0] == 0:
            _Thread.ident = get_ident()
            ran[0] = False
        depth[0] += 1
        listener.optimizer_begins(optimizer)
        clock.open(OPTIMIZER)

    @guest
    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        clock.close()
        depth[0] -= 1
        ran[0] = True
        if depth[0] == 0:
            listener.update_ended(optimizer, ran=True)

    # Never removed: a removal from inside a step would end torch's own loop over the hooks with
    # an error. Detached, they return at once.
    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)

    plain_step = GradScaler.step

    @guest
    def scaler_begins() -> None:
        if depth[0] == 0:
            ran[0] = False
        depth[0] += 1
        listener.scaled = True

    @guest
    def scaler_ended(optimizer: Any) -> None:
        depth[0] -= 1
        if depth[0] == 0:
            listener.update_ended(optimizer, ran=ran[0])

    @functools.wraps(plain_step)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        scaler_begins()
        result = plain_step(self, optimizer, *args, **kwargs)
        scaler_ended(optimizer)
        return result

    _patch(GradScaler, "step", step)


def watch_backward(listener: Listener) -> None:
    """Tell each loss that backward is called on, and count micro-batches."""
    import torch

    plain = torch.autograd.backward
    clock = listener.clock

    @guest
    def begin(tensors: Any) -> bool:
        root = tensors[0] if isinstance(tensors, (tuple, list)) and tensors else tensors
        if isinstance(root, torch.Tensor) and root.numel() == 1:
            listener.loss_seen(root)
        if get_ident() != _Thread.ident:
            return False
        clock.open(BACKWARD)
        return True

    @guest
    def end(opened: bool) -> None:
        if opened:
            clock.close()
            clock.backward_done()

    @functools.wraps(plain)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        opened = begin(tensors)
        try:
            return plain(tensors, *args, **kwargs)
        finally:
            end(opened)

    # What torch._dynamo.disable sets, without importing dynamo (a second): a compiled step that
    # calls backward keeps its single graph break.
    backward._torchdynamo_disable = True  # type: ignore[attr-defined]
    _patch(torch.autograd, "backward", backward)


def find_roots(on_root: Callable[[Any, Any, Any], None]) -> Callable[[], None]:
    """Call `on_root(module, args, kwargs)` before each outermost training forward.

    Returns what ends the search: it costs a call on every module, so it is for the first steps.
    """
    import torch
    from torch.nn import Module

    plain = Module.__call__
    depth = [0]

    @guest
    def begin(module: Any, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters()):
            on_root(module, args, kwargs)

    @functools.wraps(plain)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if depth[0] or get_ident() != _Thread.ident or torch.compiler.is_compiling():
            return plain(self, *args, **kwargs)
        begin(self, args, kwargs)
        depth[0] += 1
        try:
            return plain(self, *args, **kwargs)
        finally:
            depth[0] -= 1

    def stop() -> None:
        if Module.__dict__["__call__"] is __call__:
            Module.__call__ = plain  # type: ignore[method-assign]

    Module.__call__ = __call__  # type: ignore[method-assign]
    GUEST.leave.append(stop)
    return stop


def watch_root(module: Any, listener: Listener) -> None:
    """Tell each forward of this root from now on.

    A hook inside a compiled region would break its graph (and `fullgraph=True` jobs), so a module
    that was compiled in place is watched around its compiled call.
    """
    import torch

    called = guest(listener.root_called)
    compiled = getattr(module, "_compiled_call_impl", None)
    if compiled is not None:

        @functools.wraps(compiled)
        def around(*args: Any, **kwargs: Any) -> Any:
            training = module.training and torch.is_grad_enabled()
            called(module, args, kwargs, training=training)
            return compiled(*args, **kwargs)

        module._compiled_call_impl = around
        GUEST.leave.append(lambda: setattr(module, "_compiled_call_impl", compiled))
        return
    hook = module.register_forward_pre_hook(
        functools.partial(_root_hook, called, id(module)), with_kwargs=True
    )
    GUEST.leave.append(hook.remove)


def _root_hook(called: Any, root: int, module: Any, args: Any, kwargs: Any) -> None:
    # A deep copy (an EMA model) has the hook too, and is another module.
    if id(module) == root:
        import torch

        called(module, args, kwargs, training=module.training and torch.is_grad_enabled())
