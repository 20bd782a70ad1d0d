"""One tuning at a time on a machine: two would measure each other."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aiak_tune.errors import JobError, UsageError

POLL_S = 0.5
NAME = "aiak-tune.lock"


def machine_lock() -> Path:
    """Return the machine's lock: one for all users, whatever their data folders."""
    return Path(tempfile.gettempdir()) / NAME


@contextmanager
def one_at_a_time(
    place: Path, what: str, *, wait: bool, note: Callable[[str], None]
) -> Iterator[None]:
    """Hold the machine's lock inside; `what` is shown to those that wait for it.

    The kernel lets go of it when this process ends, however it ends.

    Raises:
        UsageError: another process holds it, and `wait` is False.
        JobError: the file cannot be made.
    """
    try:
        handle = _opened(place)
    except OSError as error:
        raise JobError(
            f"the lock {place} cannot be made ({error.strerror}): free some space or set "
            "TMPDIR to a folder that can be written"
        ) from error
    try:
        if not _taken(handle):
            holder = os.pread(handle, 500, 0).decode(errors="replace").strip() or "unknown"
            said = f"another tuning runs on this machine ({holder}); two would disturb each other"
            if not wait:
                raise UsageError(f"{said}: start this one when it has ended")
            note(f"{said}: waiting for it to end (Ctrl-C stops waiting)")
            while not _taken(handle):
                time.sleep(POLL_S)
        with suppress(OSError):  # a full disk: those that wait see no name
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()}: {what}\n".encode()[:500], 0)
        yield
    finally:
        os.close(handle)


def _opened(place: Path) -> int:
    """Open the lock; another user's, which cannot be written, can still be waited for."""
    for flags in (os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_CREAT):
        try:
            return os.open(place, flags | os.O_CLOEXEC, 0o644)
        except (FileNotFoundError, PermissionError):
            if flags & os.O_CREAT:
                raise
    raise AssertionError("the last flags return or raise")


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
