"""A rank that dies of an exception says so: the others follow, and print more than it did."""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

from aiak_tune.agent.guest import GUEST, guest
from aiak_tune.agent.ranks import process_group, rank, world_size
from aiak_tune.agent.records import FailedRank, write_failed


def watch_failures(run_dir: Path) -> None:
    """Note the exception that ends this process, where the job has several ranks."""
    plain = sys.excepthook

    @guest
    def note(error: BaseException) -> None:
        # Not a helper that a rank started, which has its variables: the rank may go on without it.
        if isinstance(error, Exception) and process_group() is not None and world_size() > 1:
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            what = f"{type(error).__name__}: {error}"
            write_failed(
                run_dir, FailedRank(rank=rank(), at_ns=time.time_ns(), error=what, text=text)
            )

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        note(error)
        plain(kind, error, trace)

    sys.excepthook = excepthook

    def leave() -> None:
        # torch's init_process_group wraps it: then ours stays below, and only passes on.
        if sys.excepthook is excepthook:
            sys.excepthook = plain

    GUEST.leave.append(leave)
