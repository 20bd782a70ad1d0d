"""The store of tunings: SQLite by default, PostgreSQL by URL. `open_store` is the way in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiak_tune.api.store.repository import SqlTuningStore

__all__ = ["open_store"]


def open_store(url: str | None = None, *, timeout_s: float = 30.0) -> SqlTuningStore:
    """Open the store, made or upgraded to this version's schema where needed.

    Args:
        url: a database URL; None takes `AIAK_TUNE_STORE`, else the file in the user's data folder.
        timeout_s: how long a call waits for a database that another process has locked.

    Raises:
        StoreError: it cannot be opened, is damaged, locked, or newer than this version.
    """
    # The verbs import this module for nothing but this function: SQLAlchemy waits until it runs.
    from aiak_tune.api.store.connection import connect
    from aiak_tune.api.store.repository import SqlTuningStore

    return SqlTuningStore(connect(url, timeout_s=timeout_s))
