"""The outermost modules of a training step: found in the first steps, then watched alone.

Nothing is left in an instance: wrappers stand on classes and act for the roots alone, so copies,
pickles and state_dict stay as they were. Inside a compiled region they only pass on, which keeps
its one graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any

from aiak_tune.agent.express import Express
from aiak_tune.agent.guest import GUEST, guest
from aiak_tune.agent.hooks import Thread
from aiak_tune.profiles.clock import FORWARD_EVAL_MODE, FORWARD_NO_GRAD, ROLLOUT


def find_roots(on_root: Callable[[Any, Any, Any], None]) -> Callable[[], None]:
    """Call `on_root(module, args, kwargs)` before each outermost training forward.

    Returns what ends the search, which is for the first steps. While an outermost module runs,
    `Module.__call__` is torch's own: a region compiled then would be compiled again, when its
    guards find that the wrapper has gone.
    """
    import torch
    from torch.nn import Module
    from torch.nn.parameter import is_lazy

    plain = Module.__call__
    compiling = torch.compiler.is_compiling
    searching = [True]

    @guest
    def begin(module: Any, args: Any, kwargs: Any) -> None:
        if not torch.is_grad_enabled():
            return
        parameters = list(module.parameters())
        # A lazy module gets its weights in its first call: it is a root from the second on.
        if any(p.requires_grad for p in parameters) and not any(map(is_lazy, parameters)):
            on_root(module, args, kwargs)

    @functools.wraps(plain)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        # First of all, since the rest would break a compiled region's graph.
        if compiling() or get_ident() != Thread.ident or not searching[0]:
            return plain(self, *args, **kwargs)
        begin(self, args, kwargs)
        replace(__call__, plain)
        try:
            return plain(self, *args, **kwargs)
        finally:
            if searching[0]:
                replace(plain, __call__)

    def replace(old: Any, new: Any) -> None:
        if Module.__dict__["__call__"] is old:
            Module.__call__ = new  # type: ignore[method-assign]

    def stop() -> None:
        searching[0] = False
        replace(__call__, plain)

    Module.__call__ = __call__  # type: ignore[method-assign]
    GUEST.leave.append(stop)
    return stop


class RootWatch:
    """Tells each forward of the roots that were added."""

    def __init__(self, called: Callable[[Any, Any, Any], None], express: Express) -> None:
        self._called = guest(called)
        self._express = express
        self._roots: dict[int, Any] = {}
        self._classes: set[type] = set()

    def add(self, module: Any) -> None:
        """Tell each forward of this root from now on."""
        self._roots[id(module)] = module
        cls = type(module)
        if cls not in self._classes:
            self._classes.add(cls)
            self._wrap(cls)

    def _wrap(self, cls: Any) -> None:
        import torch

        roots, called, compiling = self._roots, self._called, torch.compiler.is_compiling
        express, gradients = self._express, torch.is_grad_enabled
        plain = cls.__call__
        own = "__call__" in vars(cls)

        @functools.wraps(plain)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            # A root of a subclass has a wrapper of its own, and its `super` may end here.
            if not compiling() and type(module) is cls and id(module) in roots:
                if not express.on:
                    called(module, args, kwargs)
                elif not gradients():
                    express.aside(ROLLOUT if module.training else FORWARD_NO_GRAD)
                elif not module.training:
                    express.aside(FORWARD_EVAL_MODE)
            if own:
                return plain(module, *args, **kwargs)
            # Not `plain`: torch.fx and others put their own in Module for a while.
            return super(cls, module).__call__(*args, **kwargs)  # type: ignore[misc]

        def leave() -> None:
            roots.clear()
            if vars(cls).get("__call__") is not __call__:
                return
            if own:
                cls.__call__ = plain
            else:
                del cls.__call__

        cls.__call__ = __call__
        GUEST.leave.append(leave)
