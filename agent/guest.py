"""The rule of the guest: nothing of ours raises into the job.

`@guest` stands on every hook. A fault is written once to the run's folder, and the agent
detaches: from then on the job runs as if it had been started without us.
"""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Guest:
    """What this process remembers of being a guest: where to tell, how to leave."""

    def __init__(self) -> None:
        self.run_dir: Path | None = None
        self.detached = False
        self.leave: list[Callable[[], None]] = []
        # dynamo's switch, once the job compiles: a hook that a compiled region runs into would be
        # compiled too, function by function.
        self.set_eval_frame: Callable[[Any], Any] | None = None

    def fault(self, where: str) -> None:
        """Tell the fault that is being handled, once, and take every hook away."""
        if self.detached:
            return
        self.detached = True
        text = f"{where}\n{traceback.format_exc()}"
        if self.run_dir is not None:
            try:
                (self.run_dir / f"fault-{os.getpid()}.txt").write_text(text)
            except OSError:  # a full disk must not become the job's problem
                pass
        self.detach()

    def detach(self) -> None:
        """Take the hooks away, the newest first."""
        self.detached = True
        while self.leave:
            undo = self.leave.pop()
            try:
                undo()
            except (AttributeError, RuntimeError, LookupError, TypeError, ValueError):
                continue


GUEST = Guest()


def guest(function: F) -> F:
    """Make a hook safe: it returns None at once when detached, and never raises `Exception`."""

    @functools.wraps(function)
    def safe(*args: Any, **kwargs: Any) -> Any:
        if GUEST.detached:
            return None
        switch = GUEST.set_eval_frame
        before = switch(None) if switch is not None else None
        try:
            return function(*args, **kwargs)
        except Exception:
            GUEST.fault(getattr(function, "__qualname__", repr(function)))
            return None
        finally:
            if switch is not None:
                switch(before)

    return safe  # type: ignore[return-value]
