"""torch.compile of one module in place, and what came of it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from aiak_tune.ops.draws import Draws

NAME = "_compiled_call_impl"  # torch's own: `Module.__call__` looks for it, pickles leave it out


class Entry:
    """What `Module.__call__` finds in the module: its call compiled, in up to two versions."""

    def __init__(self, module: nn.Module, backend: str, mode: str) -> None:
        self.module, self.backend, self.mode = module, backend, mode
        self.fast: Callable[..., Any] | None = None
        self.as_plain: Callable[..., Any] | None = None
        self.drew = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled module."""
        if Draws.as_plain:
            return self.call_as_plain(args, kwargs)
        if self.fast is None:
            # What drew no random number is the same either way, and is not compiled twice.
            anew = self.as_plain is None or self.drew
            self.fast = self.compiled(mode=self.mode) if anew else self.as_plain
        assert self.fast is not None
        return self.fast(*args, **kwargs)

    def call_as_plain(self, args: Any, kwargs: Any) -> Any:
        """Call the version that draws its random numbers as the plain code does."""
        if self.as_plain is None:
            exact = {"fallback_random": True} if self.backend == "inductor" else None
            self.as_plain = self.compiled(options=exact)
        before = None if self.drew else random_state()
        outputs = self.as_plain(*args, **kwargs)
        if before is not None:
            now = random_state()
            self.drew = any(not torch.equal(a, b) for a, b in zip(before, now, strict=False))
        return outputs

    def compiled(self, **how: Any) -> Callable[..., Any]:
        """Have the module's call compiled; it is done when it is called."""
        return torch.compile(frame_of(self.module), backend=self.backend, **how)


def frame_of(module: nn.Module) -> Callable[..., Any]:
    """Return the function that torch.compile begins at.

    `Module.compile()` compiles nothing of torch's own classes, silently (2.13): dynamo skips
    frames that begin in torch. This one begins here, with a code of its own: dynamo keeps what it
    compiled, and how often, by code, and gives up at the eighth time; two roots would share that.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    call.__code__ = call.__code__.replace()
    return call


def random_state() -> list[torch.Tensor]:
    """Return the state of the generators that a forward may draw from."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return states


class CompiledModule:
    """A module whose calls go through torch.compile: the way back, and what was compiled.

    Holds the module weakly: a job may be done with it, and go on with another one.
    """

    def __init__(self, module: nn.Module, backend: str = "inductor", mode: str = "default") -> None:
        import torch._dynamo as dynamo

        self.module = weakref.ref(module)
        # A frame that cannot be compiled runs as written; else evaluation, met after an hour,
        # could end a job that its trial, without one, has proven.
        self.suppressed = dynamo.config.suppress_errors
        dynamo.config.suppress_errors = True
        self.before = compiled_so_far()
        entry = Entry(module, backend, mode)
        self.entry = weakref.ref(entry)
        module.__dict__[NAME] = entry

    def take_away(self) -> tuple[nn.Module, Entry] | None:
        """Let the module compute without torch.compile; None where our entry is not there."""
        module, entry = self.module(), self.entry()
        if module is None or entry is None or NAME not in module.__dict__:
            return None
        if id(module.__dict__[NAME]) != id(entry):  # the job's own, since
            return None
        del module.__dict__[NAME]
        return module, entry

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Compute as written while inside."""
        taken = self.take_away()
        try:
            yield
        finally:
            if taken is not None:
                taken[0].__dict__[NAME] = taken[1]

    def undo(self) -> None:
        """Compute as written from now on."""
        self.take_away()
        torch._dynamo.config.suppress_errors = self.suppressed

    def effect(self) -> str | None:
        """Say what was compiled; None when nothing was."""
        now = compiled_so_far()
        since = {name: max(0, now[name] - self.before[name]) for name in now}
        if not since["graph"]:
            return None
        words = [counted(since["graph"], "graph") + " compiled"]
        words += [counted(since[name], name) for name in ("graph break", "recompile")]
        if since["frame"]:
            words.append(counted(since["frame"], "frame") + " left as written")
        return ", ".join(words)


def compiled_so_far() -> dict[str, int]:
    """Return what dynamo has counted in this process: `frame` are those it failed at."""
    from torch._dynamo import convert_frame
    from torch._dynamo.utils import counters

    frames = getattr(convert_frame, "FRAME_COMPILE_COUNTER", {})
    return {
        "graph": counters["stats"]["unique_graphs"],
        "graph break": sum(counters["graph_break"].values()),
        "recompile": sum(number - 1 for number in frames.values()),
        "frame": counters["frames"]["total"] - counters["frames"]["ok"],
    }


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number or 'no'} {noun}s"
