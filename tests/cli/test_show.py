"""`show` prints all of one tuning, and its document."""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.example_tuning import ID, example_tuning

from aiak_tune.api.store import open_store
from aiak_tune.api.store.documents import tuning_document, tuning_of
from aiak_tune.cli import files, output, show, verdict
from aiak_tune.errors import NotFoundError, UsageError
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import RankFacts, Warn, WorkloadProfile
from aiak_tune.selector.results import ConfirmationRun, Measured, Verdict, Work

RUN = ConfirmationRun(
    pair=0, side="baseline", settings={}, samples_per_s=1049.2, step_ms=61.0, duration_s=20.5
)


@pytest.fixture(autouse=True)
def store_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'tunings.db'}"
    monkeypatch.setenv("AIAK_TUNE_STORE", url)
    monkeypatch.setenv("COLUMNS", "80")
    return url


def _save(**changes: Any) -> None:
    with open_store() as store:
        store.save(example_tuning(confirmation=(RUN,), **changes))


def _run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    show.add(parser.add_subparsers())
    args = parser.parse_args(["show", *words])
    code = args.run(args)
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize("name", [ID, ID[:8], ID[:10].lower(), "last"])
def test_everything_is_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _save()
    assert _run(name) == 0
    out = capsys.readouterr().out
    for word in ("data_wait", "51.1%", "What fits", "14 cores are idle", "Trials", "as written",
                 "failed (non_finite_loss)", "the loss was inf at step", "pruned", "Confirmation",
                 "num_workers=8", "4.61×", "13.2 GiB", "1,005 steps", "profiler_inflation",
                 "aiak-tune run --plan aiak-plan.json"):  # fmt: skip
        assert word in " ".join(out.split()), word
    tables = [line for line in out.splitlines() if line.startswith(" ")]
    assert max(len(line) for line in tables) <= 80
    assert "\x1b" not in out


def test_json_is_the_tunings_document(capsys: pytest.CaptureFixture[str]) -> None:
    _save()
    _run("last", "--json", "-")
    expected = example_tuning(confirmation=(RUN,))
    document = json.loads(capsys.readouterr().out)
    assert document == tuning_document(expected)
    assert tuning_of(document) == expected


def test_json_never_holds_what_json_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    first = example_tuning().trials[0]
    assert isinstance(first, Measured)
    _save(trials=(replace(first, work=Work(losses=(1.0, float("nan"), float("inf")))),))
    _run("last", "--json", "-")
    trials = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["trials"]
    assert trials[0]["work"]["losses"] == [1.0, None, None]


@pytest.mark.parametrize("name", ["last", "unknown-id", "x", ""])
def test_an_unknown_id_is_an_error(name: str) -> None:
    with pytest.raises(NotFoundError, match="history"):
        _run(name)


def test_an_ambiguous_id_is_an_error() -> None:
    _save()
    _save(id=ID[:-1] + "2")
    with pytest.raises(UsageError, match="several"):
        _run(ID[:9])


def test_a_tuning_that_has_just_begun_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    _save(verdict="running", trials=(), profile=None, findings=(), best=None, best_lossless=None)
    assert _run("last") == 0
    assert f"--resume {ID}" in capsys.readouterr().out


def test_hostile_texts_are_printed_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "[bold]x\x1b]0;title\x07\x9b2J\n\u202e[/]"
    job = replace(example_tuning().job, name=hostile, command=("python", hostile))
    _save(job=job, warnings=(Warn(code="[x]", text=hostile),), verdict_reason=hostile)
    assert _run("last") == 0
    out = capsys.readouterr().out
    assert "[bold]x" in out
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(out)


@pytest.mark.parametrize("verdict_", ["running", "faster", "no_change", "failed", "interrupted"])
def test_every_verdict_says_what_to_do_next(verdict_: Verdict) -> None:
    best = example_tuning().best if verdict_ == "faster" else None
    tuning = example_tuning(verdict=verdict_, best=best)
    assert verdict.verdict_sentence(tuning).endswith(".")
    assert verdict.next_step(tuning).startswith("Next")
    assert "\n" not in verdict.verdict_sentence(tuning) + verdict.next_step(tuning)


def _of_two_ranks(*waits_ms: float | None) -> WorkloadProfile:
    profile = example_tuning().profile
    assert profile is not None
    ranks = tuple(
        RankFacts(
            rank=rank, step_ms=60.0 + rank, comm_waiting_ms=ms,
            breakdown_ms={Category.COMPUTE: 45.0, Category.COMM: 15.0},
        )
        for rank, ms in enumerate(waits_ms)
    )  # fmt: skip
    return replace(profile, ranks=ranks, slowest_rank=1)


@pytest.mark.parametrize(
    ("waits_ms", "said"),
    [
        ((20.5, 0.0), "rank 1 is the slowest, others wait 20.5 ms a step; the figures above are "),
        ((0.4, 0.0), "the ranks are about equally fast; the figures above are those of rank 1"),
        ((None, None), "rank 1; how long ranks wait for each other is not known"),
    ],
)
def test_ranks_have_a_line_each_and_the_slowest_is_named(
    waits_ms: tuple[float | None, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _save(profile=_of_two_ranks(*waits_ms))
    assert _run("last") == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert any(said in line for line in lines)
    (line,) = [line for line in lines if line.startswith("0     60.0")]
    assert line.split()[2:8] == ["0%", "0%", "75%", "25%", "0%", "0%"]


def test_a_tuning_of_several_nodes_goes_on_on_each_of_them() -> None:
    two = replace(example_tuning().environment, nodes=2)
    tuning = example_tuning(verdict="interrupted", best=None, environment=two)
    said = verdict.next_step(tuning)
    assert said.startswith("Next, to go on, on each node: ")
    assert f"tune --rendezvous HOST:PORT --resume {ID} -- " in said


def test_a_profile_without_a_breakdown_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    profile = example_tuning().profile
    assert profile is not None
    why = Warn(code="no_gpu_events", text="CUPTI is held by another profiler")
    _save(profile=replace(profile, breakdown_ms=None, warnings=(why,)))
    _run("last")
    assert "no breakdown: CUPTI is held by another profiler" in capsys.readouterr().out


def test_an_ascii_terminal_gets_ascii(store_url: str) -> None:
    _save()
    code = "import argparse; from aiak_tune.cli import show; show.run(argparse.Namespace("
    done = subprocess.run(
        [sys.executable, "-c", f"{code}id='last', json=None))"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert done.stdout.isascii()
    assert b"#####" in done.stdout


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.0, "0"), (61.0, "61.0"), (0.00123, "0.00123"), (1049.2, "1,049"),
     (float("nan"), "–"), (-2.5, "-2.50"), (1e-9, "0.000000"), (123456.0, "123,456")],
)  # fmt: skip
def test_numbers(value: float | None, shown: str) -> None:
    assert output.number(value) == shown


def test_sizes_ratios_and_settings() -> None:
    assert [output.size(v) for v in (None, 0, 1023, 1 << 30)] == [
        "–", "0 B", "1,023 B", "1.00 GiB",
    ]  # fmt: skip
    assert output.ratio(4.612) == "4.61×"
    assert output.settings_text({}) == "as written"
    assert output.settings_text({"a": {"on": True, "n": 2}, "b": {}}) == "a(on=true, n=2), b"


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    files.write_json({"a": 1}, target)
    assert json.loads(target.read_text()) == {"a": 1}
    with pytest.raises(TypeError):
        files.write_json({"a": object()}, target)
    assert json.loads(target.read_text()) == {"a": 1}
    assert list(tmp_path.glob(".*")) == []


def test_a_file_that_cannot_be_written_is_wrong_use(tmp_path: Path) -> None:
    for target in (tmp_path / "none" / "x.json", tmp_path):
        with pytest.raises(UsageError, match=f"cannot write {target}"):
            files.write_json({}, target)
    files.write_json({}, "/dev/null")
