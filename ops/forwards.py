"""Standing around one module's forward without leaving anything in the module.

The wrapper stands on the module's class and acts for the one instance alone, so that copies,
pickles, `isinstance` and `state_dict` stay as they were. Several may stand around one module: the
last to come is the outermost.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch

Undo = Callable[[], None]
# number of a wrapper → its module while that lives. By number: a module may define __eq__.
LIVE: dict[int, weakref.ref[Any]] = {}
_NUMBERS = count()


class Around:
    """What is done around a forward, and how often it was; `around` says what."""

    def __init__(self) -> None:
        self.forwards = 0
        self.traced = False
        self.bypassed = 0

    def around(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call `forward` with whatever is changed about it."""
        raise NotImplementedError

    def idle(self) -> bool:
        """Whether this call is none of ours."""
        return False

    def run(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call `forward`, changed, and count it; in training and evaluation alike.

        A plan holds for the whole job: validation must judge the computation that is trained, and
        a model that computes differently in eval would hide a fault until deployment.
        """
        if self.bypassed or self.idle():
            return forward(*args, **kwargs)
        # A compiled forward would be compiled again for every value of a counter that it reads.
        if torch.compiler.is_compiling():
            self.traced = True
        else:
            self.forwards += 1
        return self.around(forward, args, kwargs)

    def seen(self) -> str | None:
        """Say how many forwards it stood around, as a noun; None for none."""
        if self.traced:
            return "a compiled forward"
        return f"{self.forwards} forwards" if self.forwards else None

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Compute as written while inside."""
        self.bypassed += 1
        try:
            yield
        finally:
            self.bypassed -= 1


def wrap_forward(module: Any, around: Around) -> Undo:
    """Put `around` about the module's forward; return the way back."""
    if "forward" in vars(module):
        return _wrap_instance(module, around)
    return _wrap_class(module, around)


def _stand_in(original: Any, aiak_tune_run: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes the place of `original`: it calls `aiak_tune_run` with what it is given.

    `torch.jit.script` reads the source behind `__wrapped__`, but looks the names in it up in the
    globals and the closure of the function that it is given. With ours there, a job could script
    no module of a class that we stand around, and that may be `nn.Linear`.
    """

    def forward(*args: Any, **kwargs: Any) -> Any:
        return aiak_tune_run(*args, **kwargs)

    written = inspect.unwrap(original)
    names = getattr(written, "__globals__", None)
    if names is not None:
        cells = getattr(written, "__closure__", None)
        if cells:
            names = {**names, **inspect.getclosurevars(written).nonlocals}
        forward = types.FunctionType(forward.__code__, names, "forward", None, forward.__closure__)
    return functools.update_wrapper(forward, original)


def _wrap_class(module: Any, around: Around) -> Undo:
    """Wrap `forward` of the module's class for this instance."""
    cls, key, number = type(module), id(module), next(_NUMBERS)
    inherited = "forward" not in vars(cls)
    original = cls.forward

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) != key or number not in LIVE:
            return original(self, *args, **kwargs)
        return around.run(functools.partial(original, self), args, kwargs)

    forward = _stand_in(original, run)

    def undo() -> None:
        LIVE.pop(number, None)
        if vars(cls).get("forward") is not forward:
            return  # somebody wrapped it again; without its number the wrapper only passes on
        if inherited:
            del cls.forward
        else:
            cls.forward = original

    # A new module can get the id of a dead one: its number must go first.
    LIVE[number] = weakref.ref(module, lambda _: LIVE.pop(number, None))
    cls.forward = forward
    return undo


def _wrap_instance(module: Any, around: Around) -> Undo:
    """Wrap a `forward` that the instance brings itself (OptimizedModule, others' patches)."""
    original = vars(module)["forward"]

    def run(*args: Any, **kwargs: Any) -> Any:
        return around.run(original, args, kwargs)

    forward = _stand_in(original, run)

    def undo() -> None:
        if vars(module).get("forward") is forward:
            vars(module)["forward"] = original

    vars(module)["forward"] = forward
    return undo
