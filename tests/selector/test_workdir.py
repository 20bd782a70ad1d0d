"""Copies of the job's folder: what is in them, what is not, and what is too much."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from running import JOBS, QUICK

from aiak_tune.errors import JobError, UsageError
from aiak_tune.selector import workdir as module
from aiak_tune.selector.profile_job import profile_job
from aiak_tune.selector.reporter import Silent
from aiak_tune.selector.request import Request
from aiak_tune.selector.workdir import copy_workdir, in_copy, workdir


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder with code, links inside and outside, an environment and our own folder."""
    folder = tmp_path / "theirs"
    for name in ("pkg", "out", "venv/bin", "ours/run"):
        (folder / name).mkdir(parents=True)
    (folder / "pkg/train.py").write_text("print(1)\n")
    (folder / "pkg/train.py").chmod(0o755)
    (folder / "venv/pyvenv.cfg").touch()
    (folder / "ours/run/trace.json").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.bin").write_bytes(b"x" * 5000)
    (folder / "data").symlink_to("../data")
    (folder / "latest").symlink_to(folder / "out")
    (folder / "code").symlink_to("pkg")
    os.mkfifo(folder / "pipe")
    return folder


def test_what_a_copy_has(theirs: Path, tmp_path: Path) -> None:
    found = workdir(theirs, theirs / "ours")
    assert found.text == f"each start runs in a copy of {theirs}: 6 files, 0 MiB"
    (tmp_path / "run").mkdir()
    copy = copy_workdir(found, tmp_path / "run")
    assert sorted(os.listdir(copy)) == ["code", "data", "latest", "out", "pkg", "venv"]
    assert os.access(copy / "pkg/train.py", os.X_OK)
    # Links lead inside to the copy, outside to the same.
    assert (copy / "code").resolve() == (copy / "pkg")
    assert (copy / "latest").resolve() == (copy / "out")
    assert (copy / "data").resolve() == tmp_path / "data"
    assert (copy / "venv").resolve() == theirs / "venv"
    shutil.rmtree(copy)
    assert (theirs / "venv/pyvenv.cfg").exists() and (tmp_path / "data/x.bin").exists()


def test_the_command_names_the_copy(theirs: Path, tmp_path: Path) -> None:
    found = workdir(theirs, theirs / "ours")
    words = ["python", f"{theirs}/pkg/train.py", f"--out={theirs}", f"{theirs}2/x", "--lr=1"]
    copy = tmp_path / "copy"
    assert in_copy(words, found, copy) == (
        "python", f"{copy}/pkg/train.py", f"--out={copy}", f"{theirs}2/x", "--lr=1",
    )  # fmt: skip


@pytest.mark.parametrize(("limit", "most"), [("MOST_FILES", 12), ("MOST_BYTES", 20_000)])
def test_a_folder_that_is_too_large_is_named_with_its_largest_part(
    limit: str, most: int, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(12):
        (theirs / "out" / f"{i}.bin").write_bytes(b"x" * 3000)
    monkeypatch.setattr(module, limit, most)
    with pytest.raises(UsageError, match=f"{theirs} has more than .* \\(look at out\\)"):
        workdir(theirs, theirs / "ours")


def test_a_disk_with_no_room_for_a_copy_is_named(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPARE_BYTES", 1 << 60)
    with pytest.raises(JobError, match=f"takes 0 MiB and {tmp_path} has .* GiB free"):
        copy_workdir(workdir(theirs, theirs / "ours"), tmp_path)


@pytest.mark.slow
def test_a_profile_in_a_copy_leaves_the_folder_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    monkeypatch.chdir(theirs)
    shutil.copy(JOBS / "saves.py", "train.py")
    command = (sys.executable, str(theirs / "train.py"), "100000")
    request = Request(
        command=command, slice=QUICK, workdir_copy=True, runs_dir=tmp_path, wait=True
    )  # fmt: skip
    profile, _ = profile_job(request, reporter=Silent())
    assert os.listdir() == ["train.py"]
    assert profile.job.command == command
    told = {warning.code for warning in profile.warnings}
    assert not told & {"files_written", "saves_redirected", "checkpoints_kept"}
    assert not list(tmp_path.glob("aiak-run-*"))
