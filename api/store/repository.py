"""Tunings in an SQL database: rows in, domain values out."""

from __future__ import annotations

import json
from dataclasses import replace
from types import TracebackType
from typing import Any

import sqlalchemy as sa

from aiak_tune.api.store.connection import Database
from aiak_tune.api.store.documents import (
    run_document,
    run_of,
    trial_document,
    trial_of,
    tuning_head,
    tuning_of_head,
)
from aiak_tune.api.store.schema import (
    CONFIRMATION_RUNS,
    TRIALS,
    TUNINGS,
    columns_of,
    trial_columns_of,
)
from aiak_tune.errors import ProfileError, StoreError, UsageError
from aiak_tune.selector.redaction import redact_tuning
from aiak_tune.selector.results import TuningResult

SHORTEST_PREFIX = 8
_AT_ONCE = 500  # a statement takes a limited number of values


class SqlTuningStore:
    """The TuningStore protocol over SQLite or PostgreSQL. Threads may share one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> SqlTuningStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; what was saved stays."""
        self._database.close()

    @property
    def name(self) -> str:
        """The file or URL, for messages."""
        return self._database.name

    def save(self, tuning: TuningResult) -> None:
        """Insert the tuning or replace the one with its id; durable when it returns.

        Secrets in its command and texts are redacted here too, whoever made it.

        Raises:
            StoreError: nothing was saved; what was there before is untouched.
        """
        tuning = redact_tuning(tuning)
        head = {**columns_of(tuning), "document": _dump(tuning_head(tuning))}
        trials = [
            {**trial_columns_of(trial), "document": _dump(trial_document(trial))}
            for trial in tuning.trials
        ]
        runs: list[dict[str, object]] = [
            {"document": _dump(run_document(run))} for run in tuning.confirmation
        ]

        def write(connection: sa.Connection) -> None:
            _upsert(connection, tuning.id, head)
            _replace_rows(connection, TRIALS, tuning.id, trials)
            _replace_rows(connection, CONFIRMATION_RUNS, tuning.id, runs)

        self._database.write(write)

    def find(self, tuning_id: str) -> TuningResult | None:
        """Return the tuning with this id (a unique prefix of 8 or more characters will do).

        Raises:
            UsageError: the prefix fits several tunings.
        """
        return self._database.read(lambda connection: self._find(connection, tuning_id))

    def last_unfinished(self, job_fingerprint: str) -> TuningResult | None:
        """Return the newest tuning of this job that is running or was interrupted."""
        wanted = (
            TUNINGS.c.job_fingerprint == job_fingerprint,
            TUNINGS.c.verdict.in_(("running", "interrupted")),
        )
        return next(iter(self._select(*wanted, limit=1)), None)

    def newest(self, *, limit: int, job_fingerprint: str | None = None) -> tuple[TuningResult, ...]:
        """Return tunings, the newest first."""
        if job_fingerprint is None:
            return self._select(limit=limit)
        return self._select(TUNINGS.c.job_fingerprint == job_fingerprint, limit=limit)

    def newest_of_name(self, name: str, *, limit: int) -> tuple[TuningResult, ...]:
        """Return the tunings of jobs with this name, the newest first."""
        return self._select(TUNINGS.c.name == name, limit=limit)

    def _find(self, connection: sa.Connection, tuning_id: str) -> TuningResult | None:
        found = self._load(connection, sa.select(TUNINGS).where(TUNINGS.c.id == tuning_id))
        if found or len(tuning_id) < SHORTEST_PREFIX:
            return found[0] if found else None
        # Not LIKE, which reads `_` and `%` as wildcards and knows no case in SQLite.
        begins = sa.func.substr(TUNINGS.c.id, 1, len(tuning_id)) == tuning_id
        found = self._load(connection, sa.select(TUNINGS).where(begins).limit(2))
        if len(found) > 1:
            raise UsageError(
                f"{tuning_id!r} fits several tunings ({', '.join(t.id for t in found)} …): "
                "give more characters"
            )
        return found[0] if found else None

    def _select(self, *wanted: sa.ColumnElement[bool], limit: int) -> tuple[TuningResult, ...]:
        # The id, a ULID, orders what was begun within one second.
        order = (TUNINGS.c.created_at.desc(), TUNINGS.c.id.desc())
        statement = sa.select(TUNINGS).where(*wanted).order_by(*order).limit(max(limit, 0))
        return self._database.read(lambda connection: self._load(connection, statement))

    def _load(
        self, connection: sa.Connection, statement: sa.Select[Any]
    ) -> tuple[TuningResult, ...]:
        heads = {row.id: row.document for row in connection.execute(statement)}
        trials = _documents(connection, TRIALS, heads)
        runs = _documents(connection, CONFIRMATION_RUNS, heads)
        return tuple(self._tuning(id_, heads[id_], trials[id_], runs[id_]) for id_ in heads)

    def _tuning(self, id_: str, head: str, trials: list[str], runs: list[str]) -> TuningResult:
        try:
            return replace(
                tuning_of_head(json.loads(head)),
                trials=tuple(trial_of(json.loads(trial)) for trial in trials),
                confirmation=tuple(run_of(json.loads(run)) for run in runs),
            )
        except (ProfileError, ValueError) as error:
            raise StoreError(
                f"tuning {id_} in the store {self.name} cannot be read: {error}"
            ) from error


def _upsert(connection: sa.Connection, id_: str, row: dict[str, object]) -> None:
    # Not ON CONFLICT, which each database spells in its own way.
    changed = connection.execute(sa.update(TUNINGS).where(TUNINGS.c.id == id_).values(row))
    if changed.rowcount == 0:
        connection.execute(sa.insert(TUNINGS).values(id=id_, **row))


def _replace_rows(
    connection: sa.Connection, table: sa.Table, id_: str, rows: list[dict[str, object]]
) -> None:
    connection.execute(sa.delete(table).where(table.c.tuning_id == id_))
    if rows:
        numbered = [{"tuning_id": id_, "position": n, **row} for n, row in enumerate(rows)]
        connection.execute(sa.insert(table), numbered)


def _documents(
    connection: sa.Connection, table: sa.Table, heads: dict[str, str]
) -> dict[str, list[str]]:
    """Return each tuning's documents in order, by the tuning's id."""
    found: dict[str, list[str]] = {id_: [] for id_ in heads}
    ids, order = list(heads), (table.c.tuning_id, table.c.position)
    columns = sa.select(table.c.tuning_id, table.c.document).order_by(*order)
    for start in range(0, len(ids), _AT_ONCE):
        some = columns.where(table.c.tuning_id.in_(ids[start : start + _AT_ONCE]))
        for id_, document in connection.execute(some):
            found[id_].append(document)
    return found


def _dump(document: dict[str, Any]) -> str:
    # A loss that is no number is kept as Python's JSON writes it: refusing would lose the trial.
    return json.dumps(document, separators=(",", ":"))
