"""Where the store is: `AIAK_TUNE_STORE`, or a file in the user's data folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from aiak_tune.errors import StoreError

STORE_VARIABLE = "AIAK_TUNE_STORE"


def default_file(environ: Mapping[str, str]) -> Path:
    """Return the store's file: in `$XDG_DATA_HOME`, or `~/.local/share` where that is not set."""
    data = environ.get("XDG_DATA_HOME", "")
    # The specification has relative paths ignored.
    if Path(data).is_absolute():
        return Path(data) / "aiak-tune" / "tunings.db"
    home = environ.get("HOME") or str(Path.home())
    return Path(home) / ".local" / "share" / "aiak-tune" / "tunings.db"


def store_url(url: str | None, environ: Mapping[str, str]) -> URL:
    """Return the URL to connect to; raises StoreError when it is none of ours."""
    given = url or environ.get(STORE_VARIABLE)
    if not given:
        return URL.create("sqlite", database=str(default_file(environ)))
    try:
        parsed = make_url(given.replace("postgres://", "postgresql://", 1))
    except ArgumentError:
        raise StoreError(
            f"{given!r} is no database URL; for a file write {STORE_VARIABLE}=sqlite:////path/to.db"
        ) from None
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise StoreError(f"the store is sqlite or postgresql, not {parsed.get_backend_name()!r}")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise StoreError(
            f"{given!r} names no file, so nothing would be kept: "
            f"write {STORE_VARIABLE}=sqlite:////path/to.db"
        )
    if parsed.drivername == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    return parsed


def label(url: URL) -> str:
    """Return the store's name for messages: the file, or the URL without its password."""
    if url.get_backend_name() == "sqlite":
        return url.database or "sqlite"
    return url.render_as_string(hide_password=True)
