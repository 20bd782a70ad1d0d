"""`history` lists what is stored, plainly, and says what to do when nothing is."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest
from contracts.example_tuning import ID, example_tuning

from aiak_tune.api.store import open_store
from aiak_tune.cli import history


@pytest.fixture(autouse=True)
def store_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'tunings.db'}"
    monkeypatch.setenv("AIAK_TUNE_STORE", url)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "UTC")
    return url


def _save(*changed: dict[str, object]) -> None:
    with open_store() as store:
        for changes in changed:
            store.save(example_tuning(**changes))


def _run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    history.add(parser.add_subparsers())
    args = parser.parse_args(["history", *words])
    code = args.run(args)
    assert isinstance(code, int)
    return code


def _job(name: str) -> dict[str, object]:
    return {"job": replace(example_tuning().job, name=name), "id": name.ljust(8, "x")}


def test_an_empty_store_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run() == 0
    assert "aiak-tune tune -- " in capsys.readouterr().out


def test_a_tuning_is_a_row_with_all_that_matters(capsys: pytest.CaptureFixture[str]) -> None:
    _save({})
    assert _run() == 0
    out = capsys.readouterr().out
    for word in (ID[:10], "2026-12-01", "train.py", "faster 4.61×", "4.52–4.70", "H200",
                 "cuda-graphs"):  # fmt: skip
        assert word in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_no_colour_codes_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _save({})
    _run()
    assert "\x1b" not in capsys.readouterr().out


def test_a_hostile_name_is_printed_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    _save(_job("[red]e\x1b[2J\r\n\u202evil[/]"))
    _run()
    out = capsys.readouterr().out
    assert "[red]e" in out
    assert not {"\x1b", "\r", "\u202e"} & set(out)


def test_limit_and_job_choose(capsys: pytest.CaptureFixture[str]) -> None:
    _save(_job("one.py"), _job("two.py"), _job("three.py"))
    _run("--limit", "2", "--json", "-")
    assert len(json.loads(capsys.readouterr().out)["tunings"]) == 2
    _run("--job", "two.py", "--json", "-")
    assert [t["name"] for t in json.loads(capsys.readouterr().out)["tunings"]] == ["two.py"]
    assert _run("--job", "none.py") == 0
    assert "'none.py'" in capsys.readouterr().out


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1.5"])
def test_a_limit_that_makes_no_sense_is_wrong_use(limit: str) -> None:
    with pytest.raises(SystemExit) as ended:
        _run("--limit", limit)
    assert ended.value.code == 2


def test_json_on_stdout_is_alone_there(capsys: pytest.CaptureFixture[str]) -> None:
    _save({})
    _run("--json", "-")
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["kind"]) == (1, "history")
    assert document["tunings"][0]["speedup"] == pytest.approx(4.61)


def test_json_in_a_file_goes_beside_the_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _save({})
    _run("--json", str(tmp_path / "out.json"))
    assert "train.py" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text())["tunings"][0]["id"] == ID
