"""Where torch's optimizers and its backward call us.

Each function installs one kind of hook and registers its removal with GUEST. What the hooks
learn goes to a listener; classes are patched in place, so names that the job imported before
still work. Costs a few microseconds a step (docs/results/tune.json).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from threading import get_ident, main_thread
from typing import Any, Protocol

from aiak_tune.agent.express import Express
from aiak_tune.agent.guest import GUEST, guest
from aiak_tune.profiles.clock import BACKWARD, StepClock

HIDDEN = (
    "agreement",
    "compiling",
    "evidence",
    "express",
    "feeding",
    "file_calls",
    "file_moves",
    "footprints",
    "guest",
    "hooks",
    "imports",
    "joint",
    "libraries",
    "loaders",
    "marks",
    "mirror",
    "profiling",
    "protect",
    "ranks",
    "seeding",
    "sights",
    "slicing",
    "telling",
    "trackers",
    "whole",
    "window",
)


class LoaderListener(Protocol):
    """What `loaders.watch_loaders` tells."""

    def loader_started(self, loader: Any) -> None:
        """A loader's `__iter__` is about to run, for the first time or again."""
        ...


class SliceListener(LoaderListener, Protocol):
    """What the hooks of a slice tell."""

    clock: StepClock
    express: Express

    def iterator_made(self, iterator: Any, loader: Any) -> None:
        """A loader makes an iterator."""
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

    def express_ended(self) -> None:
        """It is time for a look at the steps that `express` holds."""
        ...

    def express_left(self) -> None:
        """Another optimizer steps while `express` is on."""
        ...

    def not_simple(self) -> None:
        """A step ran inside a step, or a scaler around it: no short path for this job."""
        ...

    def scaler_used(self) -> None:
        """A GradScaler that is enabled steps."""
        ...

    def backward_begins(self) -> None:
        """Backward was called."""
        ...

    def loss_seen(self, loss: Any) -> None:
        """Backward was called on this one-element tensor."""
        ...

    def root_called(self, module: Any, args: Any, kwargs: Any) -> None:
        """A root module is about to run forward."""
        ...


class Thread:
    """The thread that trains: spans of other threads are not its time."""

    ident = main_thread().ident


def patch(owner: Any, name: str, wrapper: Any) -> Callable[[], None]:
    """Put the wrapper in place of what `owner` has by that name; return the way back.

    The guest takes that way when it leaves.
    """
    plain = owner.__dict__[name]
    setattr(owner, name, wrapper)

    def leave() -> None:
        # Wrapped again by somebody since: ours stays below, and only passes on.
        if owner.__dict__.get(name) is wrapper:
            setattr(owner, name, plain)

    GUEST.leave.append(leave)
    return leave


class _Updates:
    """The updates that run now: optimizer steps, one in the other, GradScaler.step around them.

    `running` has the frames of torch's wrapper around each `step`. No hook runs when a step
    raises, and a job may catch that: its frame has then ended, which the next step sees.
    """

    def __init__(self, listener: SliceListener) -> None:
        self.listener, self.clock = listener, listener.clock
        self.running: list[Any] = []
        self.scalers = 0
        self.ran = False

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer's step begins."""
        frame = sys._getframe(3)  # this method's, `guest`'s, the hook's, torch's
        if self.running:
            self.forget_ended(frame.f_back)
        if self.running:
            self.listener.not_simple()
        if not self.running and not self.scalers:
            Thread.ident = get_ident()
            self.ran = False
        self.running.append(frame)
        self.listener.optimizer_begins(optimizer)
        self.clock.open_update()

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer's step returned."""
        frame = sys._getframe(3)
        while self.running:
            self.clock.close()
            if self.running.pop() is frame:
                break
        self.ran = True
        if not self.running and not self.scalers:
            self.listener.update_ended(optimizer, ran=True)

    def forget_ended(self, frame: Any) -> None:
        """Leave out the steps that raised: they are not below `frame` any more."""
        alive = set()
        while frame is not None:
            alive.add(id(frame))
            frame = frame.f_back
        while self.running and id(self.running[-1]) not in alive:
            self.running.pop()
            self.clock.close()

    def scaler_begins(self, enabled: bool) -> None:
        """GradScaler.step begins."""
        if self.running:
            self.forget_ended(sys._getframe(2))
        if not self.running and not self.scalers:
            self.ran = False
        self.scalers += 1
        self.listener.not_simple()
        if enabled:
            self.listener.scaler_used()

    def scaler_ended(self, optimizer: Any, failed: bool) -> None:
        """GradScaler.step returned, or raised."""
        self.scalers -= 1
        if not failed and not self.running and not self.scalers:
            self.listener.update_ended(optimizer, ran=self.ran)


def watch_optimizers(listener: SliceListener) -> None:
    """Tell when an update begins and when the outermost one ended."""
    from torch.amp import GradScaler
    from torch.optim import optimizer as module

    updates = _Updates(listener)
    express = listener.express
    before, after = guest(updates.before), guest(updates.after)
    ended, left = guest(listener.express_ended), guest(listener.express_left)

    def begins(optimizer: Any, args: Any, kwargs: Any) -> None:
        if express.on:
            if id(optimizer) == express.only:
                return
            left()
        before(optimizer, args, kwargs)

    def returned(optimizer: Any, args: Any, kwargs: Any) -> None:
        if express.on:
            if express.tick():
                ended()
        else:
            after(optimizer, args, kwargs)

    # Never removed: a removal from inside a step would end torch's own loop over the hooks with
    # an error. Detached, they return at once.
    module.register_optimizer_step_pre_hook(begins)
    module.register_optimizer_step_post_hook(returned)
    _watch_scaler(updates, GradScaler)


def _watch_scaler(updates: _Updates, GradScaler: Any) -> None:

    plain_step = GradScaler.step
    begins, ended = guest(updates.scaler_begins), guest(updates.scaler_ended)

    @functools.wraps(plain_step)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        begins(self._enabled)
        failed = True
        try:
            result = plain_step(self, optimizer, *args, **kwargs)
            failed = False
        finally:
            ended(optimizer, failed)
        return result

    patch(GradScaler, "step", step)


def watch_backward(listener: SliceListener) -> None:
    """Tell each loss that backward is called on, and count micro-batches."""
    import torch

    plain = torch.autograd.backward
    clock, Tensor, loss_seen = listener.clock, torch.Tensor, listener.loss_seen

    @guest
    def begin(tensors: Any) -> bool:
        listener.backward_begins()
        root = tensors if isinstance(tensors, Tensor) or not tensors else tensors[0]
        if isinstance(root, Tensor) and root.numel() == 1:
            loss_seen(root)
        if get_ident() != Thread.ident:
            return False
        clock.open(BACKWARD)
        return True

    @functools.wraps(plain)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        opened = begin(tensors)
        try:
            result = plain(tensors, *args, **kwargs)
        finally:
            if opened:
                clock.close()
        if opened:
            clock.backward_done()
        return result

    # What torch._dynamo.disable sets, without importing dynamo (a second): a compiled step that
    # calls backward keeps its single graph break.
    backward._torchdynamo_disable = True  # type: ignore[attr-defined]
    patch(torch.autograd, "backward", backward)

    def away(there: bool) -> None:
        old, new = (backward, plain) if there else (plain, backward)
        if torch.autograd.backward is old and not GUEST.detached:
            torch.autograd.backward = new

    listener.express.switches.append(away)


def hide_from_dynamo(torch: Any, told: Callable[[], None] = lambda: None) -> None:
    """Keep our hooks out of what torch.compile compiles; `told` is called when it is.

    Called in the midst of a compiled step they would be compiled themselves, again for every
    value of a counter. What stands on modules is left out: there dynamo must look through.
    """
    plain = torch.compile
    hidden = [f"{os.path.dirname(__file__)}/{name}.py" for name in HIDDEN]

    @guest
    def hide() -> None:
        told()
        from torch._C._dynamo.eval_frame import set_eval_frame
        from torch._dynamo import trace_rules

        GUEST.set_eval_frame = set_eval_frame
        if hidden:
            trace_rules.SKIP_DIRS.extend(hidden)
            trace_rules._recompile_re()
            hidden.clear()

    @functools.wraps(plain)
    def compile(*args: Any, **kwargs: Any) -> Any:
        hide()
        return plain(*args, **kwargs)

    patch(torch, "compile", compile)
