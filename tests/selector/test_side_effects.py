"""What a start leaves in the user's folder, and what is said of it."""

import json
import os
import runpy
import sys
from pathlib import Path

import pytest
from running import JOBS, start

from aiak_tune.agent.footprints import PLACE
from aiak_tune.selector.side_effects import later_files, side_effects

PYTHON, SAVES = sys.executable, str(JOBS / "saves.py")


@pytest.mark.slow
def test_two_trials_of_a_job_that_resumes_start_alike_and_leave_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    monkeypatch.chdir(theirs)
    monkeypatch.setattr(sys, "argv", [SAVES, "8"])
    runpy.run_path(SAVES)  # the user's own run, of before
    names = ("last.pt", "best.pt")
    before = [Path(n).read_bytes() for n in names]
    told = {}
    for name in ("one", "two"):
        outcome = start([PYTHON, SAVES, "100000"], tmp_path / name)
        assert [r.status for r in outcome.results] == ["complete"], outcome
        told = {w.code: w.text for w in side_effects(tmp_path / name)}
    assert [Path(n).read_bytes() for n in names] == before
    assert Path("log.txt").read_text() == "from step 0\n" + 2 * "from step 6\n"
    assert sorted(os.listdir()) == ["args.json", "best.pt", "last.pt", "log.txt"]
    assert "last.pt" in told["saves_redirected"]
    assert told["resumed"].startswith("the job resumes from last.pt:")
    assert told["files_written"].startswith("the job wrote log.txt, args.json in its first steps")


def test_nothing_is_said_of_a_start_that_did_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    (tmp_path / "spec.json").touch()
    assert side_effects(tmp_path) == []
    (tmp_path / PLACE).write_text('["unheard", "of"]\n["wrote", "cut')
    assert side_effects(tmp_path) == []


def test_many_files_are_counted_and_a_folder_stands_for_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    (tmp_path / "spec.json").touch()
    (tmp_path / "made").mkdir()
    names = ["made/", "made/inside", *(f"{i}.txt" for i in range(8)), "gone.txt"]
    rows = [["wrote", f"{tmp_path}/{name}"] for name in names]
    for _, place in rows[1:-1]:
        Path(place).touch()
    (tmp_path / "before.txt").touch()
    os.utime(tmp_path / "before.txt", (1, 1))  # opened for writing, and left as it was
    rows.append(["changed", f"{tmp_path}/before.txt"])
    (tmp_path / PLACE).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (only,) = side_effects(tmp_path)
    shown = ", ".join(f"{tmp_path}/{name}" for name in ["made/", *names[2:6]])
    assert only.text.startswith(f"the job wrote {shown} and 4 more in its first steps")


def test_what_other_programs_write_is_seen_in_the_first_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, run_dir = tmp_path / "theirs", tmp_path / "runs/one"
    for folder in (theirs / "out", theirs / ".git", run_dir):
        folder.mkdir(parents=True)
    (theirs / "data.bin").touch()
    os.utime(theirs / "data.bin", (1, 1))
    monkeypatch.chdir(theirs)
    (run_dir / "spec.json").touch()
    for name in ("out/plot.png", ".git/index"):
        (theirs / name).touch()
    (only,) = side_effects(run_dir)
    assert only.text.startswith("the job wrote out/plot.png in its first steps")
    monkeypatch.setattr("aiak_tune.selector.side_effects.LOOKED_AT", 3)
    assert side_effects(run_dir) == []


def test_files_of_later_starts_are_told_of_once() -> None:
    assert later_files([]) == later_files([["/x/log"], ["/x/log"]]) == []
    (only,) = later_files([["/x/log", "/x/exp"], ["/x/log", "/x/exp2"], ["/x/exp3"], ["/x/exp3"]])
    assert "left /x/exp2, /x/exp3: look" in only.text
