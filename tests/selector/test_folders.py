"""Run folders: made, removed, and swept up when the tool that made them was killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from aiak_tune.errors import JobError
from aiak_tune.selector.folders import RunFolders, data_folder, made

KILLED = """
import os, sys
from pathlib import Path
from aiak_tune.selector.folders import RunFolders
RunFolders(Path(sys.argv[1])).new()
RunFolders(Path(sys.argv[1]), keep=True).new()
os._exit(9)
"""


def test_what_a_killed_tool_left_is_removed_and_what_is_kept_stays(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)])
    (tmp_path / "run-of-the-user").mkdir()
    assert len(list(tmp_path.iterdir())) == 3
    RunFolders(tmp_path)
    assert {place.name.split("-")[0] for place in tmp_path.iterdir()} == {"run", "kept"}


def test_a_living_tools_folder_is_left_alone(tmp_path: Path) -> None:
    folders = RunFolders(tmp_path)
    folder = folders.new()
    (folder / "births").touch()
    RunFolders(tmp_path)
    assert folder.exists()
    folders.remove(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=f"no run folder can be made in {tmp_path}/none"):
        RunFolders(tmp_path / "none").new()
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match=f"the folder {tmp_path}/file/data cannot be made"):
        made(tmp_path / "file" / "data")


@pytest.mark.parametrize(("value", "base"), [("", ".local/share"), ("relative", ".local/share")])
def test_the_data_folder_is_where_the_standard_says(
    value: str, base: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", value)
    assert data_folder() == tmp_path / base / "aiak-tune"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert data_folder() == tmp_path / "data" / "aiak-tune"
