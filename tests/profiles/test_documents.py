"""Documents load strictly, come back as they were, and every schema ever released still loads."""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from aiak_tune.api.store.documents import (
    profile_document,
    profile_of,
    tuning_document,
    tuning_of,
)
from aiak_tune.errors import ProfileError
from aiak_tune.optimizations.base import Settings
from aiak_tune.profiles.documents import SCHEMA, from_document, parse, to_document
from aiak_tune.profiles.workload import (
    Environment,
    JobFacts,
    LoaderFacts,
    ModelFacts,
    OptimizerFacts,
    StepFacts,
    WorkloadProfile,
)
from aiak_tune.selector import results
from aiak_tune.selector.results import Measured, Plan

DATA = Path(__file__).resolve().parents[1] / "data" / "documents"
RELEASED = sorted(DATA.glob("v*"))
released = pytest.mark.parametrize("folder", RELEASED, ids=lambda p: p.name)


def _read(folder: Path, kind: str) -> dict[str, Any]:
    document = json.loads((folder / f"{kind}.json").read_text())
    assert isinstance(document, dict)
    return document


@released
def test_every_profile_ever_released_still_loads(folder: Path) -> None:
    document = _read(folder, "profile")
    profile, findings = profile_of(document)
    assert profile.steps.step_ms.mean == pytest.approx(61.0)  # the same job in every folder
    assert profile.job.model is not None
    assert profile.job.model.cls == "ResNet"
    assert findings[0].bound == pytest.approx(2.05)
    assert profile_of(profile_document(profile, findings)) == (profile, findings)
    _assert_holds(profile_document(profile, findings), document)


@released
def test_every_tuning_ever_released_still_loads(folder: Path) -> None:
    document = _read(folder, "tuning")
    tuning = tuning_of(document)
    assert tuning.best is not None
    assert tuning.best.speedup == pytest.approx(4.61)
    assert [trial.state for trial in tuning.trials] == [
        "measured", "failed", "pruned", "measured", "measured",
    ]  # fmt: skip
    assert tuning_of(tuning_document(tuning)) == tuning
    _assert_holds(tuning_document(tuning), document)


@released
def test_every_plan_ever_released_still_loads(folder: Path) -> None:
    document = _read(folder, "plan")
    plan = from_document(document, Plan, kind="plan")
    assert plan.speedup == pytest.approx(4.61)
    _assert_holds(to_document(plan, kind="plan"), document)


def test_a_new_schema_brings_its_files() -> None:
    assert [folder.name for folder in RELEASED] == [f"v{n}" for n in range(1, SCHEMA + 1)]


def test_every_trial_has_the_same_first_keys() -> None:
    document = tuning_document(tuning_of(_read(DATA / "v1", "tuning")))
    shared = {"number", "settings", "state", "reason_code", "reason", "samples_per_s", "step_ms",
              "breakdown_ms", "memory_bytes", "duration_s"}  # fmt: skip
    assert all(shared <= set(trial) for trial in document["trials"])


def test_a_document_is_plain_json_and_says_what_it_is() -> None:
    document = tuning_document(tuning_of(_read(DATA / "v1", "tuning")))
    assert json.loads(json.dumps(document)) == document
    assert list(document)[:2] == ["schema", "kind"]
    assert (document["kind"], document["profile"]["kind"]) == ("tuning", "profile")


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"schema": "1"},
        {"schema": None},
        {"kind": "plan"},
        {"surprise": 1},
        {"job": None},
        {"job": []},
        {"steps": {"counted": 1}},
        {"breakdown_ms": {"sleep": 1.0}},
        {"breakdown_ms": {"comm": "1.0"}},
        {"breakdown_ms": {"comm": True}},
        {"memory_bytes": "1"},
        {"memory_bytes": 1.5},
        {"warnings": [{"code": 1, "text": "x"}]},
        {"warnings": "none"},
        {"findings": "none"},
        {"findings": [1]},
        {"findings": [{"optimization": "amp"}]},
    ],
    ids=str,
)
def test_what_is_no_valid_profile_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ProfileError):
        profile_of({**_read(DATA / "v1", "profile"), **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"trials": None},
        {"trials": [1]},
        {"trials": [{}]},
        {"trials": [{"state": "won", "number": 0}]},
        {"trials": [{"state": "failed", "number": 0, "samples_per_s": 3.0}]},
        {"confirmation": {}},
        {"verdict": "maybe"},
        {"profile": 3},
        {"best": {"speedup": 2.0}},
    ],
    ids=str,
)
def test_what_is_no_valid_tuning_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ProfileError):
        tuning_of({**_read(DATA / "v1", "tuning"), **changes})


@pytest.mark.parametrize("document", [None, [], "x", 3, {}, {"schema": 1}])
def test_what_is_no_document_is_refused(document: object) -> None:
    for read in (profile_of, tuning_of):
        with pytest.raises(ProfileError):
            read(document)


def test_a_whole_number_will_do_for_a_float_and_stays_itself_in_settings() -> None:
    settings: Settings = {"a": {"n": 1, "x": 1.5, "on": True, "s": "1"}}
    trial = Measured(number=0, settings=settings, samples_per_s=1.0, step_ms=2.0, duration_s=3.0)
    document = {**to_document(trial, kind="trial"), "samples_per_s": 1}
    loaded = from_document(document, Measured, kind="trial")
    assert loaded == trial
    assert [type(v) for v in loaded.settings["a"].values()] == [int, float, bool, str]


@pytest.mark.parametrize("text", ["", "{", "a: [", "just words", "- 1", "\0"])
def test_text_that_is_no_document_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(ProfileError, match="the thing is not valid JSON or YAML"):
        parse(text, what="the thing")


def test_the_documents_page_names_every_field() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "documents.md").read_text()
    classes = [v for v in vars(results).values() if isinstance(v, type) and is_dataclass(v)]
    classes += [WorkloadProfile, JobFacts, ModelFacts, OptimizerFacts, LoaderFacts, StepFacts,
                Environment]  # fmt: skip
    names = {
        "class" if field.name == "cls" else field.name for cls in classes for field in fields(cls)
    }
    assert {name for name in names if f"`{name}`" not in page} == set()


def _assert_holds(document: Any, released: Any) -> None:
    """Whatever the released document says, this one says too; it may say more."""
    if isinstance(released, dict):
        for key, value in released.items():
            _assert_holds(document[key], value)
    elif isinstance(released, list):
        assert len(document) == len(released)
        for one, other in zip(document, released, strict=True):
            _assert_holds(one, other)
    else:
        assert document == released
