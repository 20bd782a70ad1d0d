"""`profile` prints where the time goes, what fits and what to run next."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.example_tuning import example_tuning

from aiak_tune.cli import main, profile
from aiak_tune.cli.output import emit
from aiak_tune.errors import JobError
from aiak_tune.profiles.workload import Warn, WorkloadProfile
from aiak_tune.selector.reporter import Reporter
from aiak_tune.selector.request import Request
from aiak_tune.selector.results import FindingRecord

FINDINGS = example_tuning().findings


@pytest.fixture(autouse=True)
def nothing_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def measured() -> WorkloadProfile:
    found = example_tuning().profile
    assert found is not None
    return found


def _screen(capsys: pytest.CaptureFixture[str], *given: Any, **files: Any) -> str:
    emit(profile.screen(*given, **files), {}, json=None)
    return capsys.readouterr().out


def _fake(monkeypatch: pytest.MonkeyPatch, result: object) -> list[tuple[Request, Any, Any]]:
    pytest.importorskip("aiak_tune.selector.profile_job")
    seen: list[tuple[Request, Any, Any]] = []

    def fake(request: Request, *, reporter: Reporter, trace: Any, tensorboard: Any) -> object:
        seen.append((request, trace, tensorboard))
        reporter.started("profile", {})
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr("aiak_tune.selector.profile_job.profile_job", fake)
    return seen


def test_all_is_said(capsys: pytest.CaptureFixture[str], measured: WorkloadProfile) -> None:
    out = _screen(capsys, measured, FINDINGS)
    for word in ("train.py on H200", "1,049 samples/s", "61.0 ms", "median 60.7", "58.9–64.2",
                 "20 counted steps after 10 of warm-up", "data_wait", "51.1%", "What fits",
                 "2.05×", "14 cores are idle", "one rank", "profiler_inflation"):  # fmt: skip
        assert word in " ".join(out.split()), word
    last = "Next, to measure what fits: aiak-tune tune -- python train.py --lr 0.1"
    assert out.splitlines()[-1] == last
    assert "\x1b" not in out


def test_when_nothing_fits_no_tuning_is_advised(
    capsys: pytest.CaptureFixture[str], measured: WorkloadProfile
) -> None:
    none = (FindingRecord(optimization="amp", fits=False, reason="x", bound=None),)
    out = _screen(capsys, measured, none)
    assert "aiak-tune tune" not in out
    assert "Nothing in the catalog fits" in out


def test_missing_figures_are_said_and_not_zero(
    capsys: pytest.CaptureFixture[str], measured: WorkloadProfile
) -> None:
    why = Warn(code="no_gpu_events", text="CUPTI is held by another profiler")
    steps = replace(measured.steps, samples_per_s=None)
    out = _screen(
        capsys, replace(measured, breakdown_ms=None, steps=steps, warnings=(why,)), FINDINGS
    )
    assert "samples per second unknown" in out
    assert "no breakdown: CUPTI is held" in out


def test_files_are_named(capsys: pytest.CaptureFixture[str], measured: WorkloadProfile) -> None:
    out = _screen(capsys, measured, FINDINGS, trace=Path("t.json"), tensorboard=Path("board"))
    assert "The trace is in t.json" in out
    assert "tensorboard --logdir board" in out


def test_options_reach_the_request(
    monkeypatch: pytest.MonkeyPatch, measured: WorkloadProfile
) -> None:
    seen = _fake(monkeypatch, (measured, FINDINGS))
    words = ["--steps", "7", "--warmup", "3", "--trace", "t.json", "--tensorboard", "b"]
    assert main.main(["profile", *words, "--", "python", "train.py"]) == 0
    request, trace, tensorboard = seen[0]
    assert request.command == ("python", "train.py")
    assert (request.slice.steps, request.slice.warmup, request.slice.parity) == (7, 3, 3)
    assert (trace, tensorboard) == (Path("t.json"), Path("b"))


def test_json_is_the_profiles_document(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    measured: WorkloadProfile,
) -> None:
    _fake(monkeypatch, (measured, FINDINGS))
    assert main.main(["profile", "--json", "-", "--", "python", "train.py"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], len(document["findings"])) == ("profile", len(FINDINGS))


def test_a_job_that_fails_shows_its_last_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _fake(monkeypatch, JobError("the job ended with exit code 1", tail="ValueError: no data"))
    assert main.main(["profile", "--", "python", "train.py"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("aiak-tune: the job ended with exit code 1\n  ValueError: no data\n")


def test_a_trace_that_cannot_be_written_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _fake(monkeypatch, JobError("x"))
    assert main.main(["profile", "--trace", "none/t.json", "--", "python", "train.py"]) == 2
    assert seen == []
