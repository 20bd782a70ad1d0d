"""What the job set for its whole process: threads, precision, how cuDNN chooses."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from aiak_tune.agent.guest import GUEST
from aiak_tune.optimizations.threads import chosen_threads


def process_facts(torch: Any) -> dict[str, Any]:
    """Return what holds in this process now, in the document's words."""
    cudnn = torch.backends.cudnn
    return {
        "threads": torch.get_num_threads(),
        "threads_by": chosen_threads(os.environ),
        "cudnn_benchmark": bool(cudnn.benchmark),
        "deterministic": bool(cudnn.deterministic or torch.are_deterministic_algorithms_enabled()),
    }


def notice_threads(torch: Any, note: Callable[..., None]) -> None:
    """Note where the job's own code sets the number of threads.

    Data workers and the thread that pins memory set theirs, which is not the job's choice.
    """
    plain, trains = torch.set_num_threads, os.getpid()

    @functools.wraps(plain)
    def set_num_threads(count: Any) -> Any:
        if threading.current_thread() is threading.main_thread() and os.getpid() == trains:
            note(threads_by="torch.set_num_threads")
        return plain(count)

    torch.set_num_threads = set_num_threads

    def undo() -> None:
        if torch.set_num_threads is set_num_threads:
            torch.set_num_threads = plain

    GUEST.leave.append(undo)
