"""Steps that the job marks itself, by `aiak_tune.step_done`."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import get_ident
from typing import Any, Protocol

import aiak_tune
from aiak_tune.agent.guest import GUEST, guest
from aiak_tune.agent.hooks import Thread

NAME = "step_done"
MARKS_LATE = (
    "aiak_tune.step_done was called for the first time when the steps had been counted: optimizer "
    "updates were taken for steps; import it in the main script to have it noticed before"
)


class MarkListener(Protocol):
    """What `watch_marks` tells."""

    def step_marked(self, samples: int | None) -> None:
        """The job called step_done."""
        ...


def watch_marks(listener: MarkListener) -> None:
    """Tell each call of `aiak_tune.step_done` in this process."""

    @guest
    def marked(samples: Any) -> None:
        Thread.ident = get_ident()
        listener.step_marked(None if samples is None else int(samples))

    aiak_tune._listener = marked

    def leave() -> None:
        if aiak_tune._listener is marked:
            aiak_tune._listener = None

    GUEST.leave.append(leave)


def job_marks_steps() -> bool:
    """Whether the job's code calls step_done somewhere, as far as that shows before it does.

    An update is then no step, though many may come before the first mark. Seen: modules that hold
    the function, and sources that call it of the main script and of modules that hold the package.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "aiak_tune":
            continue
        held = getattr(module, "__dict__", {}).values()
        if any(value is aiak_tune.step_done for value in held):
            return True
        if name == "__main__" or any(value is aiak_tune for value in held):
            if f"{NAME}(" in _source(module):
                return True
    return False


def _source(module: Any) -> str:
    place = getattr(module, "__file__", None)
    if not isinstance(place, str):
        return ""
    try:
        return Path(place).read_text(errors="replace")
    except OSError:
        return ""
