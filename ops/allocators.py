"""What allocates in this process: which malloc, whether it keeps its memory, torch's segments."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

BLOCK = 64 << 20  # above every threshold at which glibc by itself turns to mmap
FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
    "keepcost",
)  # fmt: skip


class _Wide(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


class _Narrow(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in FIELDS]


def is_mapped(library: str) -> bool:
    """Whether a file of this name is loaded here; what LD_PRELOAD named comes before all others."""
    try:
        rows = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return False
    return any(library in Path(row.split(maxsplit=5)[-1]).name for row in rows)


def heap_is_kept() -> bool:
    """Whether this process's malloc is glibc's and takes even a large block from its heap.

    Seen by one: it then shows among what glibc has in use, and not among what it mapped.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo"):
        return False
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    before = _in_use(library)
    block = library.malloc(BLOCK)
    grown = (_in_use(library) - before) % 2**32  # the older call counts in 32 bits
    library.free(block)
    return bool(block) and BLOCK // 2 <= grown < 2 * BLOCK


def _in_use(library: Any) -> int:
    wide = getattr(library, "mallinfo2", None)  # since glibc 2.33
    call = library.mallinfo if wide is None else wide
    call.restype = _Narrow if wide is None else _Wide
    return int(call().uordblks)


def expandable_segments() -> tuple[int, int]:
    """Return the number of expandable segments that torch holds on GPUs, and their bytes."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return 0, 0
    sizes = [s["total_size"] for s in torch.cuda.memory_snapshot() if s.get("is_expandable")]
    return len(sizes), sum(sizes)


def device_requests() -> int | None:
    """Return how often torch asked the GPU's driver for memory or gave some back so far."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    told = torch.cuda.memory_stats()
    if "num_device_alloc" not in told:
        return None
    return int(told["num_device_alloc"]) + int(told.get("num_device_free", 0))
