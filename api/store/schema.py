"""The tables. A row's `document` is the truth; the other columns are copies to select by.

No value is ever read back from a copy, and `columns_of` writes them in the same statement.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, DateTime, Float, ForeignKey, Index, Integer, MetaData, Table, Text

from aiak_tune.errors import StoreError
from aiak_tune.selector.results import Trial, TuningResult

HEAD = "0001"  # the newest migration; a test compares
VERSION_TABLE = "aiak_tune_version"  # Alembic's default name would clash with Optuna's in one file

METADATA = MetaData()

TUNINGS = Table(
    "tunings",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("created_at", DateTime, nullable=False),  # UTC
    Column("job_fingerprint", Text, nullable=False),
    Column("model_fingerprint", Text),
    Column("name", Text, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("speedup", Float),
    Column("gpu", Text),
    Column("torch", Text),
    Column("document", Text, nullable=False),  # all but trials and confirmation, JSON
    Index("ix_tunings_created_at", "created_at", "id"),
    Index("ix_tunings_job_fingerprint", "job_fingerprint", "created_at"),
    Index("ix_tunings_model_fingerprint", "model_fingerprint", "created_at"),
)


def _child(name: str, *columns: Column[Any]) -> Table:
    parent = ForeignKey("tunings.id", ondelete="CASCADE")
    return Table(
        name,
        METADATA,
        Column("tuning_id", Text, parent, primary_key=True),
        Column("position", Integer, primary_key=True, autoincrement=False),
        *columns,
        Column("document", Text, nullable=False),
    )


TRIALS = _child(
    "trials",
    Column("state", Text, nullable=False),
    Column("reason_code", Text),
    Column("samples_per_s", Float),
)
CONFIRMATION_RUNS = _child("confirmation_runs")


def columns_of(tuning: TuningResult) -> dict[str, object]:
    """Return the copies that a tuning is selected by."""
    return {
        "created_at": _utc(tuning.created_at),
        "job_fingerprint": _text(tuning.job.fingerprint),
        "model_fingerprint": _text(tuning.job.model_fingerprint),
        "name": _text(tuning.job.name),
        "verdict": tuning.verdict,
        "speedup": None if tuning.best is None else tuning.best.speedup,
        "gpu": _text(tuning.environment.gpu),
        "torch": _text(tuning.environment.torch),
    }


def trial_columns_of(trial: Trial) -> dict[str, object]:
    """Return the copies that a trial is selected by; a failed one has no rate."""
    return {
        "state": trial.state,
        "reason_code": trial.reason_code,
        "samples_per_s": getattr(trial, "samples_per_s", None),
    }


def _utc(moment: str) -> datetime:
    """Return an ISO 8601 time as naive UTC, one order for every offset it may be written with."""
    try:
        parsed = datetime.fromisoformat(moment)
    except ValueError:
        raise StoreError(f"created_at is {moment!r}: not a time in ISO 8601") from None
    return parsed.replace(tzinfo=parsed.tzinfo or UTC).astimezone(UTC).replace(tzinfo=None)


def _text(value: str | None) -> str | None:
    # A file name may hold bytes that are no UTF-8, and PostgreSQL takes no NUL.
    return value and value.encode("utf-8", "replace").decode().replace("\0", "�")
