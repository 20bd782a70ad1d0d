"""The tuning and profile documents (docs/documents.md) from the values, and back.

They differ from the plain values in two ways that readers of the documents rely on: every trial
has the same keys, null where its state has no such figure, and a profile carries its findings.
Imports no database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from aiak_tune.errors import ProfileError
from aiak_tune.profiles.documents import from_document, to_document
from aiak_tune.profiles.workload import WorkloadProfile
from aiak_tune.selector.results import (
    ConfirmationRun,
    Failed,
    FindingRecord,
    Measured,
    Pruned,
    Trial,
    TuningResult,
)

T = TypeVar("T")
_STATES: dict[str, type[Trial]] = {"measured": Measured, "failed": Failed, "pruned": Pruned}
_TRIAL_KEYS = (
    "number", "settings", "state", "reason_code", "reason", "samples_per_s", "step_ms",
    "breakdown_ms", "memory_bytes", "duration_s",
)  # fmt: skip


def profile_document(
    profile: WorkloadProfile, findings: Sequence[FindingRecord] = ()
) -> dict[str, Any]:
    """Return the document of a profile with what was found to fit."""
    document = to_document(profile, kind="profile")
    warnings = document.pop("warnings")
    return {**document, "findings": [_body(f) for f in findings], "warnings": warnings}


def profile_of(document: object) -> tuple[WorkloadProfile, tuple[FindingRecord, ...]]:
    """Return a profile document's profile and findings; raises ProfileError."""
    findings: object = []
    if isinstance(document, dict):
        document = dict(document)
        findings = document.pop("findings", [])
    if not isinstance(findings, list):
        raise ProfileError(f"not a valid profile: findings is a list, got {findings!r:.80}")
    records = tuple(_value(f, FindingRecord, kind="finding") for f in findings)
    return from_document(document, WorkloadProfile, kind="profile"), records


def tuning_document(tuning: TuningResult) -> dict[str, Any]:
    """Return the document of a tuning, with its profile's document in it."""
    document = tuning_head(tuning)
    profile = document.pop("profile")
    return {
        **document,
        "trials": [trial_document(trial) for trial in tuning.trials],
        "confirmation": [run_document(run) for run in tuning.confirmation],
        "profile": profile,
    }


def tuning_of(document: object) -> TuningResult:
    """Return the tuning of a document; raises ProfileError."""
    if not isinstance(document, dict):
        raise ProfileError(f"a tuning is a mapping, this is {type(document).__name__}")
    head = dict(document)
    trials, runs = head.pop("trials", []), head.pop("confirmation", [])
    if not (isinstance(trials, list) and isinstance(runs, list)):
        raise ProfileError("not a valid tuning: trials and confirmation are lists")
    return replace(
        tuning_of_head(head),
        trials=tuple(trial_of(trial) for trial in trials),
        confirmation=tuple(run_of(run) for run in runs),
    )


def tuning_head(tuning: TuningResult) -> dict[str, Any]:
    """Return a tuning's document without trials and confirmation runs."""
    bare = replace(tuning, trials=(), confirmation=(), profile=None, findings=())
    document = to_document(bare, kind="tuning")
    for key in ("trials", "confirmation", "findings"):
        del document[key]
    if tuning.profile is not None:
        return {**document, "profile": profile_document(tuning.profile, tuning.findings)}
    # Findings come from a profile; without one the key appears only if there are some.
    left = {"findings": [_body(f) for f in tuning.findings]} if tuning.findings else {}
    return {**document, **left}


def tuning_of_head(document: dict[str, Any]) -> TuningResult:
    """Return the tuning, without trials and confirmation runs, of `tuning_head`'s document."""
    head = dict(document)
    profile, findings = head.pop("profile", None), head.pop("findings", [])
    tuning = from_document(head, TuningResult, kind="tuning")
    if profile is not None:
        value, records = profile_of(profile)
        return replace(tuning, profile=value, findings=records)
    records = tuple(_value(f, FindingRecord, kind="finding") for f in findings)
    return replace(tuning, findings=records)


def trial_document(trial: Trial) -> dict[str, Any]:
    """Return a trial's part of the document."""
    return {**dict.fromkeys(_TRIAL_KEYS), **_body(trial)}


def trial_of(document: object) -> Trial:
    """Return the trial; a null for a figure that its state cannot have is left out."""
    state = document.get("state") if isinstance(document, dict) else None
    cls = _STATES.get(state) if isinstance(state, str) else None
    if not isinstance(document, dict) or cls is None:
        raise ProfileError(f"not a valid trial: its state is one of {', '.join(_STATES)}")
    known = {field.name for field in fields(cls)}
    return _value(
        {key: v for key, v in document.items() if v is not None or key in known}, cls, kind="trial"
    )


def run_document(run: ConfirmationRun) -> dict[str, Any]:
    """Return a confirmation run's part of the document."""
    return _body(run)


def run_of(document: object) -> ConfirmationRun:
    """Return the confirmation run; raises ProfileError."""
    return _value(document, ConfirmationRun, kind="confirmation run")


def _body(value: object) -> dict[str, Any]:
    document = to_document(value, kind="")
    return {key: v for key, v in document.items() if key not in ("schema", "kind")}


def _value(body: object, cls: type[T], *, kind: str) -> T:
    if not isinstance(body, dict):
        raise ProfileError(f"a {kind} is a mapping, this is {type(body).__name__}")
    return from_document({"schema": 1, "kind": kind, **body}, cls, kind=kind)
