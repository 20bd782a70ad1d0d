"""What was seen of a job before its first step: where none comes, the tool can say why.

Also the loops that backward does not show: gradients asked by `torch.autograd.grad`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any, Protocol

from aiak_tune.agent.express import Express
from aiak_tune.agent.guest import guest
from aiak_tune.agent.hooks import Thread, patch
from aiak_tune.agent.records import note_seen


class Sights:
    """Tells each kind of event once."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._told: set[str] = set()

    def note(self, what: str) -> None:
        """Something of this kind was seen; a word of `records.SIGHTS`."""
        if what not in self._told:
            self._told.add(what)
            note_seen(self._run_dir, what)

    def training(self) -> bool:
        """Whether forwards may be those of training: an optimizer is there, or a gradient was.

        A model that runs a batch of zeros through itself while it is made (ultralytics measures
        its strides so) shows parts of itself as outermost modules.
        """
        return not self._told.isdisjoint(("optimizer", "backward", "gradient"))


class GradientListener(Protocol):
    """What the functions below tell."""

    express: Express
    sights: Sights

    def gradient_asked(self, output: Any) -> None:
        """The gradient of this one-element tensor is asked by torch.autograd.grad."""
        ...


def watch_made(listener: GradientListener) -> None:
    """Note that an optimizer was made."""
    from torch.optim import Optimizer

    plain = Optimizer.__init__
    note = guest(listener.sights.note)

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        note("optimizer")

    patch(Optimizer, "__init__", __init__)


def watch_autocast(torch: Any, told: Callable[[], None]) -> None:
    """Tell when the job turns autocast on where it trains: around the model or inside of it."""
    cls = torch.autocast
    plain = cls.__enter__

    @guest
    def entered(context: Any) -> None:
        if context._enabled and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            told()

    @functools.wraps(plain)
    def __enter__(self: Any) -> Any:
        entered(self)
        return plain(self)

    patch(cls, "__enter__", __enter__)


def watch_gradients(torch: Any, listener: GradientListener) -> Callable[[], None]:
    """Tell what torch.autograd.grad is asked of a loss, until the returned function is called.

    Dynamo compiles that function into its graphs, and our wrapper would break them.
    """
    plain = torch.autograd.grad
    express, Tensor = listener.express, torch.Tensor

    @guest
    def asked(outputs: Any) -> None:
        if express.on or get_ident() != Thread.ident:
            return
        root = outputs if isinstance(outputs, Tensor) or not outputs else outputs[0]
        if isinstance(root, Tensor) and root.numel() == 1:
            listener.gradient_asked(root)

    @functools.wraps(plain)
    def grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        asked(outputs)
        return plain(outputs, *args, **kwargs)

    return patch(torch.autograd, "grad", grad)
