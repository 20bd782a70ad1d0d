"""`tune`: what it asks for, the plan file, the last screen and the exit codes."""

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.example_tuning import ID, example_tuning

from aiak_tune.cli import main, tune
from aiak_tune.cli.output import emit
from aiak_tune.errors import UsageError
from aiak_tune.optimizations.base import Numerics
from aiak_tune.selector.plan import load_plan, plan_of
from aiak_tune.selector.reporter import Reporter
from aiak_tune.selector.request import Request
from aiak_tune.selector.results import Baseline, Failed, TuningResult, TuningStore, Verdict

VERDICTS: list[Verdict] = ["faster", "no_change", "failed", "interrupted"]


@pytest.fixture(autouse=True)
def nothing_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIAK_TUNE_STORE", f"sqlite:///{tmp_path / 'tunings.db'}")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


def _parsed(*words: str) -> Namespace:
    args = main.make_parser().parse_args(["tune", *words])
    args.command = ("python", "train.py")
    return args


def _ended(verdict: Verdict) -> TuningResult:
    """A tuning with this verdict whose settings this version knows."""
    tuning = example_tuning(verdict=verdict)
    assert tuning.best is not None
    best = replace(tuning.best, settings={"amp": {"dtype": "bfloat16"}})
    if verdict != "faster":
        return replace(tuning, best=None, best_lossless=None)
    return replace(tuning, best=best)


def _tune(monkeypatch: pytest.MonkeyPatch, tuning: TuningResult) -> list[Request]:
    """Put this result in the selector's place; return the requests that it will get."""
    pytest.importorskip("aiak_tune.selector.tune")
    seen: list[Request] = []

    def fake(request: Request, *, store: TuningStore, reporter: Reporter) -> TuningResult:
        seen.append(request)
        reporter.cost(starts=12, seconds_each=None)
        return tuning

    monkeypatch.setattr("aiak_tune.selector.tune.tune", fake)
    return seen


def _screen(tuning: TuningResult, capsys: pytest.CaptureFixture[str], **given: Any) -> str:
    emit(tune.screen(tuning, Path("aiak-plan.json"), **given), {}, json=None)
    return capsys.readouterr().out


def test_what_is_not_said_is_the_requests_own_default() -> None:
    assert tune.request_of(_parsed()) == Request(command=("python", "train.py"))


def test_every_option_reaches_the_request() -> None:
    asked = tune.request_of(
        _parsed(
            "--trials", "4", "--time-budget", "1h30m", "--numerics", "lossless",
            "--only", "amp,fused-optimizer", "--only", "data-workers", "--exclude", "amp",
            "--steps", "50", "--warmup", "30", "--keep-logs", "--no-wait", "--resume", ID,
        )
    )  # fmt: skip
    assert (asked.trials, asked.time_budget_s, asked.numerics) == (4, 5400.0, Numerics.LOSSLESS)
    assert asked.only == ("amp", "fused-optimizer", "data-workers")
    assert asked.exclude == ("amp",)
    assert (asked.slice.steps, asked.slice.warmup) == (50, 30)
    assert asked.slice.max_window_s > 3600, "all the steps that were asked for are counted"
    assert (asked.keep_logs, asked.wait) == (True, False)
    assert (asked.resume, asked.resume_id) == (True, ID)


def test_resume_without_an_id_is_the_last_unfinished() -> None:
    asked = tune.request_of(_parsed("--resume"))
    assert (asked.resume, asked.resume_id) == (True, None)


def test_help_names_the_real_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    main.main(["tune", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    default = Request(command=())
    for shown in (f"baseline counts ({default.trials})", f"({default.numerics.value})",
                  f"so many steps ({default.slice.steps})",
                  f"before them ({default.slice.warmup})"):  # fmt: skip
        assert shown in text
    assert tuple(n.value for n in Numerics) == tune.CLASSES


def test_too_short_a_warmup_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 12"):
        tune.request_of(_parsed("--warmup", "3"))


@pytest.mark.parametrize(("text", "value"), [("90s", 90), ("10m", 600), ("1h", 3600)])
def test_times(text: str, value: float) -> None:
    assert _parsed("--time-budget", text).time_budget == value


@pytest.mark.parametrize(
    "words",
    [["--time-budget", "10"], ["--time-budget", "0s"], ["--time-budget", "m"],
     ["--time-budget", "1.5h"], ["--trials", "1"], ["--only", ","], ["--numerics", "fast"],
     ["--steps", "0"], ["--warmup", "-1"]],
)  # fmt: skip
def test_values_that_make_no_sense_are_wrong_use(words: list[str]) -> None:
    assert main.main(["tune", *words, "--", "x"]) == 2


@pytest.mark.parametrize(
    ("verdict", "code"),
    [("faster", 0), ("no_change", 0), ("failed", 1), ("interrupted", 130)],
)
def test_exit_codes(verdict: Verdict, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _tune(monkeypatch, _ended(verdict))
    assert main.main(["tune", "--", "python", "train.py"]) == code
    assert Path("aiak-plan.json").exists() == (verdict == "faster")


def test_a_gain_leaves_a_plan_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = _ended("faster")
    seen = _tune(monkeypatch, tuning)
    assert main.main(["tune", "--plan", "mine.json", "--", "python", "train.py"]) == 0
    assert load_plan(Path("mine.json").read_text()) == plan_of(tuning)
    assert seen[0].command == ("python", "train.py")


@pytest.mark.parametrize("verdict", ["no_change", "failed", "interrupted"])
def test_without_a_gain_an_older_plan_is_left_alone_and_named(
    verdict: Verdict, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("aiak-plan.json").write_text("older")
    _tune(monkeypatch, _ended(verdict))
    main.main(["tune", "--", "python", "train.py"])
    assert Path("aiak-plan.json").read_text() == "older"
    assert "aiak-plan.json is an older one and was left as it is" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--plan", "--json"])
@pytest.mark.parametrize("target", ["none/x.json", "."])
def test_a_file_that_cannot_be_written_is_refused_before_the_first_start(
    option: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = _tune(monkeypatch, _ended("faster"))
    assert main.main(["tune", option, target, "--", "x"]) == 2
    assert seen == []


def test_a_plan_that_cannot_be_written_in_the_end_costs_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(target: Path, text: str) -> None:
        raise UsageError("cannot write it: full")

    monkeypatch.setattr("aiak_tune.cli.files.write_whole", full)
    _tune(monkeypatch, _ended("faster"))
    assert main.main(["tune", "--", "python", "train.py"]) == 1
    out = capsys.readouterr().out
    assert "No plan was written: cannot write it: full" in out
    assert "4.61×" in out


def test_json_on_stdout_is_alone_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tuning = _ended("no_change")
    job = replace(tuning.job, command=("python", "train.py", "--api-key", "hunter2"))
    _tune(monkeypatch, replace(tuning, job=job))
    assert main.main(["tune", "--json", "-", "--", "python", "train.py"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["verdict"] == "no_change"
    assert "hunter2" not in out
    assert "at most 12 starts" in err


def test_the_last_screen_has_all_that_matters(capsys: pytest.CaptureFixture[str]) -> None:
    out = _screen(example_tuning(), capsys)
    for word in ("data_wait", "51.1%", "Not tried", "one rank: nothing is communicated",
                 "as written", "failed (non_finite_loss)", "the loss was inf at step 4",
                 "pruned (clearly_slower)", "0.85×", "measured, confirmed", "4.61× (4.52–4.70)",
                 "best lossless", "passed: mean |loss - baseline|", "48.0 s longer",
                 "paid back after 1,005 steps", "profiler_inflation", "Faster: 4.61×",
                 "The plan is in aiak-plan.json."):  # fmt: skip
        assert word in " ".join(out.split()), word
    assert out.splitlines()[-1] == (
        "Next: aiak-tune run --plan aiak-plan.json -- python train.py --lr 0.1"
    )
    tables = [line for line in out.splitlines() if line.startswith(" ")]
    assert max(len(line) for line in tables) <= 80
    assert "\x1b" not in out


@pytest.mark.parametrize("verdict", VERDICTS)
def test_each_end_says_what_comes_next(
    verdict: Verdict, capsys: pytest.CaptureFixture[str]
) -> None:
    last = _screen(_ended(verdict), capsys).splitlines()[-1]
    assert last.startswith("Next") and last.endswith("python train.py --lr 0.1")
    assert (f"--resume {ID}" in last) == (verdict == "interrupted")


def test_no_gain_says_what_would_have_been_seen(capsys: pytest.CaptureFixture[str]) -> None:
    tuning = replace(_ended("no_change"), smallest_visible_gain=1.03, verdict_reason="all slower")
    out = _screen(tuning, capsys)
    assert "a gain of 3.0% would have been seen" in out
    assert "all slower" in out
    assert "No plan was written: nothing was proven faster." in out


def test_a_failed_tuning_shows_the_jobs_last_lines(capsys: pytest.CaptureFixture[str]) -> None:
    crashed = Failed(
        number=0, settings={}, reason_code="crash", reason="ended with 1", duration_s=1.0,
        log_tail="Traceback\nValueError: \x1b[31mno data",
    )  # fmt: skip
    out = _screen(replace(_ended("failed"), trials=(crashed,), verdict_reason="no data"), capsys)
    assert "  Traceback\n  ValueError:  [31mno data\n" in out
    assert "The tuning failed: no data." in out


def test_the_job_as_written_is_the_measure_of_its_own_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    baseline = Baseline(samples_per_s=2000.0, ci95=None, step_ms=32.0, runs=4)
    out = _screen(example_tuning(baseline=baseline), capsys)
    assert "1,049   1.00×" in out


def test_hostile_texts_are_printed_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "[bold]x\x1b]0;title\x07\x9b2J\n\u202e[/]"
    job = replace(example_tuning().job, name=hostile, command=("python", hostile))
    findings = (replace(example_tuning().findings[0], fits=False, reason=hostile),)
    tuning = replace(_ended("no_change"), job=job, verdict_reason=hostile, findings=findings)
    out = _screen(tuning, capsys)
    assert "[bold]x" in out
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(out)
