"""The way to the database: its engine, its transactions, its schema."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import NoSuchModuleError

from aiak_tune.api.store.failures import as_store_error, retry_locked
from aiak_tune.api.store.location import label, store_url
from aiak_tune.api.store.schema import HEAD, METADATA, VERSION_TABLE
from aiak_tune.errors import StoreError

T = TypeVar("T")
_BUSY_MS = 500  # one try; `retry_locked` goes on until the time-out
_SCHEMA_LOCK = 0x61696B  # any number, the same in every version: PostgreSQL's advisory lock


class Database:
    """An open database; `read` and `write` are the only ways in, one transaction each."""

    def __init__(self, engine: sa.Engine, *, name: str, timeout_s: float) -> None:
        self.engine = engine
        self.name = name
        self._timeout_s = timeout_s

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Return what `work` reads, from one state of the database."""
        return self._transact(work, writes=False)

    def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Return what `work` returns, its changes durable; it may be called again after a lock."""
        return self._transact(work, writes=True)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def _transact(self, work: Callable[[sa.Connection], T], *, writes: bool) -> T:
        engine = self.engine.execution_options(aiak_tune_writes=writes)

        def attempt() -> T:
            with engine.begin() as connection:
                return work(connection)

        with as_store_error(self.name):
            return retry_locked(attempt, name=self.name, timeout_s=self._timeout_s)


def connect(url: str | None, *, timeout_s: float) -> Database:
    """Open the database and bring its schema to this version's; raises StoreError."""
    target = store_url(url, os.environ)
    name = label(target)
    database = Database(_engine(target, name), name=name, timeout_s=timeout_s)
    try:
        # Most starts find the schema as it should be and take no lock, nor import Alembic.
        if database.read(_revision) != HEAD:
            database.write(lambda connection: _upgrade(connection, name))
    except BaseException:
        database.close()
        raise
    return database


def _engine(url: sa.URL, name: str) -> sa.Engine:
    if url.get_backend_name() != "sqlite":
        return _postgres_engine(url, name)
    if url.database and url.database != ":memory:" and not url.database.startswith("file:"):
        _make_folder(Path(url.database), name)
    engine = sa.create_engine(url, connect_args={"timeout": _BUSY_MS / 1000})
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _postgres_engine(url: sa.URL, name: str) -> sa.Engine:
    try:
        return sa.create_engine(url, pool_pre_ping=True)
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        raise StoreError(f"the store {name} needs `pip install 'psycopg[binary]'`") from error


def _make_folder(file: Path, name: str) -> None:
    try:
        # Commands and job names are the user's own business.
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreError(
            f"the folder of the store {name} cannot be made ({error.strerror}): "
            "make it, or give another store with AIAK_TUNE_STORE"
        ) from error


def _set_up_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # `_begin_sqlite` begins: the driver would do it too late
    cursor = connection.cursor()
    # Readers and one writer at a time without waiting for each other, and a commit is on the disk
    # when it returns (NORMAL would keep it from a crash of the tool, not from one of the machine).
    for pragma in ("foreign_keys=ON", "journal_mode=WAL", "synchronous=FULL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    # A writer takes the lock first: one that reads, then writes, may fail without a second try.
    writes = connection.get_execution_options().get("aiak_tune_writes", True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    number = sa.column("version_num", sa.Text)
    return connection.scalar(sa.select(number).select_from(sa.table(VERSION_TABLE)))


def _upgrade(connection: sa.Connection, name: str) -> None:
    """Migrate to HEAD under the writer's lock, so that two starts at once make one schema."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
    revision = _revision(connection)
    if revision == HEAD:
        return
    if revision is not None and (not re.fullmatch(r"\d{4}", revision) or revision > HEAD):
        raise StoreError(
            f"the store {name} has schema {revision}, this version knows up to {HEAD}: "
            "update aiak-tune, or give another store with AIAK_TUNE_STORE"
        )
    taken = set(METADATA.tables) & set(sa.inspect(connection).get_table_names())
    if revision is None and taken:
        raise StoreError(
            f"the store {name} belongs to something else (it has a table {min(taken)!r}): "
            "give another one with AIAK_TUNE_STORE"
        )
    _migrate(connection)


def _migrate(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    folder = Path(__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
