"""What the database reports, as a StoreError that says what to do, and the wait for a lock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from aiak_tune.errors import StoreError

T = TypeVar("T")
log = logging.getLogger(__name__)

# SQLite's primary result codes, https://www.sqlite.org/rescode.html
_BUSY, _LOCKED = 5, 6
_REMEDIES = {
    3: ("may not be opened", "make it writable, or give another one with AIAK_TUNE_STORE"),
    8: ("is read-only", "make it writable, or give another one with AIAK_TUNE_STORE"),
    10: ("could not be read or written", "check the disk, and that its folder has space"),
    11: ("is damaged", "move it away (a new one is made), or put a backup in its place"),
    13: ("cannot grow: the disk is full", "free some space, then try again"),
    14: ("cannot be opened", "check that its folder exists and is writable"),
    26: ("is not a database", "move it away (a new one is made), or correct AIAK_TUNE_STORE"),
}
_FIRST_WAIT_S, _LONGEST_WAIT_S, _SAY_AFTER_S = 0.02, 0.5, 1.0


@contextmanager
def as_store_error(name: str) -> Iterator[None]:
    """Turn the database's errors into a StoreError that names the store."""
    try:
        yield
    except DBAPIError as error:
        raise StoreError(_explain(name, error)) from error
    except SQLAlchemyError as error:
        raise StoreError(f"the store {name} failed: {_first_line(error)}") from error


def retry_locked(action: Callable[[], T], *, name: str, timeout_s: float) -> T:
    """Call `action` until the store is not locked by another process, at most `timeout_s`.

    SQLite's own busy time-out is not enough: it does not cover the change to write-ahead logging
    nor a lock that would be a deadlock, which come back at once.
    """
    begun, wait_s, said = time.monotonic(), _FIRST_WAIT_S, False
    while True:
        try:
            return action()
        except DBAPIError as error:
            waited = time.monotonic() - begun
            if not _is_locked(error) or waited >= timeout_s:
                raise
        if waited > _SAY_AFTER_S and not said:
            log.warning("waiting for the store %s: another process has locked it", name)
            said = True
        time.sleep(min(wait_s, max(timeout_s - waited, 0.001)))
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


def _code(error: DBAPIError) -> int | None:
    """Return SQLite's primary result code, None for other databases."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _is_locked(error: DBAPIError) -> bool:
    return _code(error) in (_BUSY, _LOCKED)


def _explain(name: str, error: DBAPIError) -> str:
    if _is_locked(error):
        return (
            f"the store {name} is locked by another process: "
            "end that process or wait for it, then try again; what was saved before is kept"
        )
    what = _REMEDIES.get(_code(error) or 0)
    if what is None:
        return f"the store {name} failed: {_first_line(error)}"
    return f"the store {name} {what[0]} ({error.orig}): {what[1]}"


def _first_line(error: SQLAlchemyError) -> str:
    # Only the first: SQLAlchemy adds the statement and its values, a whole tuning.
    text = str(getattr(error, "orig", None) or error)
    return text.partition("\n")[0]
