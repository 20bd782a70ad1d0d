"""The command line as a whole: verbs, `--`, messages, exit codes, signals."""

import argparse
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aiak_tune import __version__
from aiak_tune.cli import catalog, main, run, show, tune
from aiak_tune.errors import (
    AiakTuneError,
    JobError,
    NotFoundError,
    PlanError,
    StoreError,
    UsageError,
)

Run = Callable[[argparse.Namespace], int]


@pytest.fixture(autouse=True)
def nothing_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIAK_TUNE_STORE", f"sqlite:///{tmp_path / 'tunings.db'}")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


def _raising(error: BaseException) -> Run:
    def raises(args: argparse.Namespace) -> int:
        raise error

    return raises


def test_without_a_verb_help_is_shown_as_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "usage: aiak-tune" in err and "profile" in err


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["tune", "--help"], ["run", "-h"]])
def test_help_is_no_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(words) == 0
    assert capsys.readouterr().out.startswith("usage: aiak-tune")


def test_help_is_readable_in_an_ascii_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], *([verb.__name__.rpartition(".")[2]] for verb in main.VERBS)):
        main.main([*words, "--help"])
    assert capsys.readouterr().out.isascii()


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"aiak-tune {__version__}\n"


@pytest.mark.parametrize("words", [["tunes"], ["tune", "--trails", "3"], ["catalog", "x"],
                                   ["tune", "--tri", "3", "--", "x"], ["show"], ["--bogus"],
                                   ["history", "--", "python"]])  # fmt: skip
def test_wrong_use_is_exit_code_2_and_says_what(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines()[-1].startswith("aiak-tune")


@pytest.mark.parametrize("words", [[], ["--"], ["python", "train.py"], ["--", ""]])
@pytest.mark.parametrize(("verb", "code"), [("profile", 2), ("tune", 2), ("run", 125)])
def test_a_missing_command_names_the_form(
    verb: str, code: int, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main([verb, *words]) == code
    err = capsys.readouterr().err
    assert f"`aiak-tune {verb} -- python train.py`" in err
    assert err.count("\n") == 1


def test_all_behind_the_first_dashes_is_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[argparse.Namespace] = []

    def keeps(args: argparse.Namespace) -> int:
        seen.append(args)
        return 0

    monkeypatch.setattr(tune, "run", keeps)
    assert main.main(["tune", "--trials", "3", "--", "sh", "--trials", "9", "--", "--help"]) == 0
    assert seen[0].command == ("sh", "--trials", "9", "--", "--help")
    assert seen[0].trials == 3


@pytest.mark.parametrize(
    ("error", "code"),
    [(AiakTuneError("x"), 1), (UsageError("x"), 2), (PlanError("x"), 2), (StoreError("x"), 1),
     (NotFoundError("plan", "x"), 1), (JobError("x"), 1)],
)  # fmt: skip
def test_an_error_is_one_line_and_its_code(
    error: AiakTuneError,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(catalog, "run", _raising(error))
    assert main.main(["catalog"]) == code
    assert capsys.readouterr() == ("", f"aiak-tune: {error}\n")


@pytest.mark.parametrize("error", [UsageError("x"), PlanError("x"), JobError("x")])
def test_a_refusal_of_run_is_no_exit_code_of_a_job(
    error: AiakTuneError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "run", _raising(error))
    assert main.main(["run", "--", "x"]) == 125
    assert main.main(["run", "--bogus", "--", "x"]) == 125
    assert main.main(["run", "--plan"]) == 125


def test_a_jobs_last_lines_are_indented_and_not_obeyed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = JobError("the job\nended", tail="Traceback:\n  \x1b[2JValueError: \u202eno\n")
    monkeypatch.setattr(show, "run", _raising(error))
    assert main.main(["show", "last"]) == 1
    assert capsys.readouterr().err == (
        "aiak-tune: the job ended\n  Traceback:\n     [2JValueError:  no\n"
    )


def test_an_interruption_is_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalog, "run", _raising(KeyboardInterrupt()))
    assert main.main(["catalog"]) == 130
    assert capsys.readouterr().err == "aiak-tune: interrupted\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_tuning_that_is_told_to_end_is_interrupted(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told_to_end(args: argparse.Namespace) -> int:
        os.kill(os.getpid(), number)
        signal.pause()
        return 0

    before = signal.getsignal(number)
    monkeypatch.setattr(tune, "run", told_to_end)
    assert main.main(["tune", "--", "x"]) == 130
    assert signal.getsignal(number) == before


def test_a_signal_that_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_told_to_end(args: argparse.Namespace) -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        return 0

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    monkeypatch.setattr(tune, "run", is_told_to_end)
    try:
        assert main.main(["tune", "--", "x"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("words", [["-vv", "catalog"], ["catalog", "-v", "-v"]])
def test_verbose_before_or_after_the_verb(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def keeps(args: argparse.Namespace) -> int:
        seen.append(args.verbose)
        return 0

    monkeypatch.setattr(catalog, "run", keeps)
    assert main.main(words) == 0
    assert seen == [2]
    logging.getLogger("aiak_tune").setLevel(logging.NOTSET)


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    code = "import sys; from aiak_tune.cli.main import main; sys.exit(main(['catalog']))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("words", [["--help"], ["catalog"], ["catalog", "--json", "-"],
                                   ["history"], ["tune", "--help"]])  # fmt: skip
def test_output_that_cannot_be_written_is_said(words: list[str]) -> None:
    code = f"import sys; from aiak_tune.cli.main import main; sys.exit(main({words!r}))"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    said = done.stderr.decode()
    assert said.startswith("aiak-tune: the output cannot be written: No space left on device")
    assert said.count("\n") == 1


@pytest.mark.parametrize("columns", ["0", "1", "-5", "x", ""])
def test_a_width_that_is_none_breaks_nothing(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main.main(["catalog"]) == 0
    assert "data-workers" in capsys.readouterr().out


def test_a_jobs_binary_or_endless_lines_are_made_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = bytes({*range(256)} - {10}).decode(errors="replace") * 100
    many = "\n".join(f"line {n}" for n in range(500))
    tail = f"{many}\n{binary} ValueError: broken file\nbegin {'x' * 10_000} end\n\n"
    monkeypatch.setattr(show, "run", _raising(JobError("the job ended", tail=tail)))
    assert main.main(["show", "last"]) == 1
    err = capsys.readouterr().err
    lines = err.splitlines()
    assert len(lines) == 1 + 38 and max(len(line) for line in lines) < 450
    assert "\ufffd" not in err
    assert lines[-2].endswith("ValueError: broken file")
    assert lines[-1].startswith("  begin xxx") and lines[-1].endswith("xxx end")
    assert "line 499" in err and "line 400" not in err


def test_help_loads_neither_rich_nor_what_a_tuning_needs() -> None:
    code = (
        "import sys; from aiak_tune.cli.main import main; main(['tune', '--help']);"
        "print(*(m for m in sys.modules if m.split('.')[0] in ('rich', 'numpy', 'msgspec') or "
        "m.startswith(('aiak_tune.selector', 'aiak_tune.optimizations'))), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr.strip() == b""
