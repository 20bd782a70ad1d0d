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


def malloc_library() -> str:
    """Return the file that `malloc` comes from, "" where /proc does not tell."""
    address = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value or 0
    try:
        rows = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return ""
    for row in rows:
        low, high = (int(end, 16) for end in row.split(" ", 1)[0].split("-"))
        if low <= address < high:
            return row.split(maxsplit=5)[-1]
    return ""


def heap_is_kept() -> bool:
    """Whether glibc's malloc takes even a large block from its heap, which it does not give back.

    Another C library's, or another malloc's, is not looked into: False.
    """
    library = ctypes.CDLL(None)
    if "libc" not in Path(malloc_library()).name or not hasattr(library, "mallinfo"):
        return False
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    before = _mapped_blocks(library)
    block = library.malloc(BLOCK)
    after = _mapped_blocks(library)
    library.free(block)
    return bool(block) and after == before


def _mapped_blocks(library: Any) -> int:
    wide = getattr(library, "mallinfo2", None)  # since glibc 2.33
    call = library.mallinfo if wide is None else wide
    call.restype = _Narrow if wide is None else _Wide
    return int(call().hblks)


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
