"""`run` hands the job and its plan on; where there is none it says so and runs the job."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.example_tuning import example_tuning

from aiak_tune.api.store import open_store
from aiak_tune.cli import main
from aiak_tune.errors import PlanError
from aiak_tune.profiles.fingerprint import job_fingerprint
from aiak_tune.selector.plan import dump_plan, plan_of
from aiak_tune.selector.results import Plan, TuningResult

JOB = ("python", "train.py")
Seen = list[tuple[tuple[str, ...], Plan | None, bool, bool]]


@pytest.fixture(autouse=True)
def nothing_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIAK_TUNE_STORE", f"sqlite:///{tmp_path / 'tunings.db'}")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def refused() -> list[Plan]:
    """Plans that the selector is to refuse."""
    return []


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, refused: list[Plan]) -> Seen:
    pytest.importorskip("aiak_tune.selector.run_plan")
    calls: Seen = []

    def fake(
        command: tuple[str, ...],
        plan: Plan | None,
        *,
        force: bool,
        fallback: bool,
        note: Callable[[str], None],
        tell: Callable[[dict[str, Any]], None] | None = None,
    ) -> int:
        calls.append((command, plan, force, fallback))
        if plan in refused and not force:
            raise PlanError("gpu: H200 in the plan, none here")
        return 7

    def as_written(command: tuple[str, ...]) -> tuple[int, bool]:
        calls.append((command, None, False, True))
        return 7, False

    monkeypatch.setattr("aiak_tune.selector.run_plan.run_plan", fake)
    monkeypatch.setattr("aiak_tune.selector.foreground.run_here", as_written)
    return calls


def _faster(**changes: object) -> TuningResult:
    tuning = example_tuning(**changes)
    assert tuning.best is not None
    best = replace(tuning.best, settings={"amp": {"dtype": "bfloat16"}})
    fingerprint = job_fingerprint(JOB, Path.cwd())
    return replace(tuning, best=best, job=replace(tuning.job, fingerprint=fingerprint))


def _plan() -> Plan:
    plan = plan_of(_faster())
    assert plan is not None
    return plan


def test_without_a_plan_the_job_runs_and_it_is_said(
    seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["run", "--", *JOB]) == 7
    assert seen == [(JOB, None, False, True)]
    out, err = capsys.readouterr()
    assert out == "", "stdout is the job's"
    assert err == (
        "aiak-tune: no plan given, running as written: --plan FILE uses one that `aiak-tune tune` "
        "wrote, --recommend the store's\n"
    )


def test_a_plan_that_lies_there_is_hinted_at(
    seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("aiak-plan.json").write_text("{}")
    assert main.main(["run", "--", *JOB]) == 7
    assert "--plan aiak-plan.json uses the one here" in capsys.readouterr().err


def test_the_plan_and_the_options_are_handed_on(seen: Seen) -> None:
    Path("p.json").write_text(dump_plan(_plan()))
    assert main.main(["run", "--plan", "p.json", "--force", "--no-fallback", "--", *JOB]) == 7
    assert seen == [(JOB, _plan(), True, False)]


@pytest.mark.parametrize("content", [None, "{", "{}", b"\xff\xfe\x00"])
def test_a_plan_that_cannot_be_read_is_refused(
    content: str | bytes | None, seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path("p.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main.main(["run", "--plan", "p.json", "--", *JOB]) == 125
    assert seen == []
    assert capsys.readouterr().err.startswith("aiak-tune: ")


def test_a_plan_of_another_environment_is_refused(seen: Seen, refused: list[Plan]) -> None:
    refused.append(_plan())
    Path("p.json").write_text(dump_plan(_plan()))
    assert main.main(["run", "--plan", "p.json", "--", *JOB]) == 125
    assert len(seen) == 1


def test_an_empty_store_recommends_nothing(seen: Seen, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["run", "--recommend", "--", *JOB]) == 7
    assert seen == [(JOB, None, False, True)]
    assert "running as written" in capsys.readouterr().err


def test_the_newest_faster_tuning_of_this_job_is_recommended(
    seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    other = replace(_faster().job, fingerprint="job1:other")
    with open_store() as store:
        store.save(_faster(id="01JE5Q3X7N0000000000000001", created_at="2026-12-01T01:00:00Z"))
        store.save(_faster(id="01JE5Q3X7N0000000000000002", created_at="2026-12-01T02:00:00Z"))
        store.save(
            replace(
                _faster(id="01JE5Q3X7N0000000000000003", created_at="2026-12-01T03:00:00Z"),
                verdict="no_change", best=None,
            )
        )  # fmt: skip
        newer = _faster(id="01JE5Q3X7N0000000000000004", created_at="2026-12-01T04:00:00Z")
        store.save(replace(newer, job=other))
    assert main.main(["run", "--recommend", "--", *JOB]) == 7
    plan = seen[0][1]
    assert plan is not None
    assert (plan.tuning_id, plan.evidence) == ("01JE5Q3X7N0000000000000002", "measured")
    assert "4.61×" in capsys.readouterr().err


def test_a_recommended_plan_that_does_not_fit_here_costs_no_run(
    seen: Seen, refused: list[Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    refused.append(_plan())
    with open_store() as store:
        store.save(_faster())
    assert main.main(["run", "--recommend", "--", *JOB]) == 7
    assert [call[1] for call in seen] == [_plan(), None]
    assert "gpu: H200 in the plan, none here" in capsys.readouterr().err


def test_a_stored_plan_that_this_version_does_not_know_costs_no_run(seen: Seen) -> None:
    known = _faster()
    assert known.best is not None
    best = replace(known.best, settings={"warp-drive": {}})
    with open_store() as store:
        store.save(replace(known, best=best))
    assert main.main(["run", "--recommend", "--", *JOB]) == 7
    assert seen[0][1] is None


def test_a_store_that_cannot_be_opened_costs_no_run(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIAK_TUNE_STORE", "mysql://x")
    assert main.main(["run", "--recommend", "--", *JOB]) == 7
    assert seen[0][1] is None


def test_a_service_is_not_in_this_version(seen: Seen, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["run", "--recommend", "http://tuner:8000", "--", *JOB]) == 125
    assert seen == []
    assert "no service" in capsys.readouterr().err


def test_plan_and_recommend_exclude_each_other(seen: Seen) -> None:
    assert main.main(["run", "--plan", "p.json", "--recommend", "--", *JOB]) == 125
    assert seen == []
