"""What the job set for its whole process: threads, precision, how cuDNN chooses."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from aiak_tune.agent.guest import GUEST, guest
from aiak_tune.optimizations.allocator import chosen_allocator
from aiak_tune.optimizations.cpu_affinity import chosen_affinity
from aiak_tune.optimizations.tf32 import chosen_precision
from aiak_tune.optimizations.threads import chosen_threads

Note = Callable[..., None]
BENCHMARK_BY = "cudnn_benchmark_by"


def process_facts(torch: Any) -> dict[str, Any]:
    """Return what holds in this process now, in the document's words."""
    from aiak_tune.ops import tf32

    cudnn = torch.backends.cudnn
    return {
        "threads": torch.get_num_threads(),
        "threads_by": chosen_threads(os.environ),
        "tf32": tf32.in_force(),
        "precision_by": chosen_precision(os.environ),
        "cudnn_benchmark": bool(cudnn.benchmark),
        BENCHMARK_BY: None,
        "cores": len(os.sched_getaffinity(0)),
        "affinity_by": chosen_affinity(os.environ),
        "allocator_by": chosen_allocator(os.environ, gpu=torch.cuda.is_initialized()),
        "deterministic": bool(cudnn.deterministic or torch.are_deterministic_algorithms_enabled()),
    }


def memory_asked() -> dict[str, int | None]:
    """Return how often memory was asked for anew so far: pages of the system, the GPU's driver."""
    import resource

    from aiak_tune.ops import allocators

    return {
        "page_faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt,
        "device_requests": allocators.device_requests(),
    }


def notice_choices(torch: Any, note: Note) -> None:
    """Note where the job's own code sets one of these."""
    from aiak_tune.ops import switches

    noted = guest(note)
    _notice_threads(torch, noted)
    for kind, fact in ((switches.PRECISION, "precision_by"), (switches.BENCHMARK, BENCHMARK_BY)):
        GUEST.leave.append(switches.listen(kind, functools.partial(_note_name, noted, fact)))


def _note_name(note: Note, fact: str, name: str) -> None:
    note(**{fact: name})


def _notice_threads(torch: Any, note: Note) -> None:
    """Data workers and the thread that pins memory set theirs, which is not the job's choice."""
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
