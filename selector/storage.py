"""How fast a folder's storage is read: a bounded test with a file of our own, gone at its end."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

FILE_BYTES = 128 * 2**20
CHUNK_BYTES = 2**20  # as large reads as a loader of packed shards makes
LONGEST_S = 3.0  # for writing, and again for reading
LEAST_FREE = 4  # times the file


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTest:
    """What was read and how; `bytes_per_s` is None, with a `problem`, where nothing could be."""

    folder: str
    filesystem: str | None
    read_bytes: int = 0
    seconds: float = 0.0
    method: str = ""
    problem: str | None = None

    @property
    def bytes_per_s(self) -> float | None:
        """Sequential reads of one thread."""
        return self.read_bytes / self.seconds if self.seconds > 0 and self.read_bytes else None


def read_test(folder: Path, *, size: int = FILE_BYTES) -> ReadTest:
    """Write a file of at most `size` bytes into the folder, past the page cache, and read it back.

    It has no name, so nothing stays whatever happens.
    """
    kind = filesystem_of(folder)
    unread = ReadTest(folder=str(folder), filesystem=kind)
    try:
        if shutil.disk_usage(folder).free < LEAST_FREE * size:
            return replace(unread, problem="it is nearly full: nothing was written")
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            written = _write(file.fileno(), size)
            read, seconds, method = _read(file.fileno(), written)
    except OSError as error:
        return replace(unread, problem=error.strerror or str(error))
    return replace(unread, read_bytes=read, seconds=seconds, method=method)


def _write(handle: int, size: int) -> int:
    # Random bytes: some storage keeps no zeros, some compresses.
    chunk, written, began = os.urandom(CHUNK_BYTES), 0, time.monotonic()
    while written < size and time.monotonic() - began < LONGEST_S:
        written += os.write(handle, chunk)
    os.fsync(handle)  # dirty pages cannot be dropped
    return written - written % CHUNK_BYTES


def _read(handle: int, size: int) -> tuple[int, float, str]:
    """Return bytes, seconds and how: O_DIRECT where the file system knows it."""
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        direct = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return (*_timed(handle, size), "page cache dropped by fadvise, then read through it")
    try:
        return (*_timed(direct, size), "O_DIRECT, past the page cache")
    except OSError:  # opened, and not read: some network file systems
        return (*_timed(handle, size), "page cache dropped by fadvise, then read through it")
    finally:
        os.close(direct)


def _timed(handle: int, size: int) -> tuple[int, float]:
    buffer = mmap.mmap(-1, CHUNK_BYTES)  # aligned, as O_DIRECT wants it
    read, began = 0, time.monotonic()
    while read < size and time.monotonic() - began < LONGEST_S:
        got = os.preadv(handle, [buffer], read)
        if got <= 0:
            break
        read += got
    return read, time.monotonic() - began


def filesystem_of(folder: Path) -> str | None:
    """Return the type of the file system that the folder is on, as `ext4`, `nfs4`, `tmpfs`."""
    device = os.stat(folder).st_dev if folder.exists() else None
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        before, _, after = line.partition(" - ")
        major, _, minor = before.split()[2].partition(":")
        if device is not None and os.makedev(int(major), int(minor)) == device:
            return after.split()[0]
    return None
