"""Python's own file calls in a trial: what jobs do with their checkpoints works, and stays away."""

import builtins
import glob
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from running import JOBS
from slices import guesting

import aiak_tune
from aiak_tune.agent import mirror as mirror_module
from aiak_tune.agent.file_moves import redirect_moves
from aiak_tune.agent.footprints import Footprints, read_footprints
from aiak_tune.agent.guest import GUEST
from aiak_tune.agent.mirror import Mirror
from aiak_tune.agent.protect import redirect_saves


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder, with checkpoints of an earlier run, and a trial that is armed in it."""
    folder = tmp_path / "run"
    folder.mkdir()
    here = tmp_path / "theirs"
    here.mkdir()
    monkeypatch.chdir(here)
    torch.save({"epoch": 7}, "last.pt")
    torch.save({"epoch": 5}, "best.pt")
    Path("scores.pkl").write_bytes(pickle.dumps([1]))
    Path("old").mkdir()
    torch.save({"epoch": 1}, "old/first.pt")
    Path("old/latest").write_text("first.pt")
    monkeypatch.setattr(sys.modules["__main__"], "replaces", os.replace, raising=False)
    (folder / "spec.json").touch()
    with guesting(folder):
        redirect_saves(torch, folder)
        yield folder


def beside_and_renamed() -> None:
    torch.save({"epoch": 8}, "last.pt.tmp")
    os.replace("last.pt.tmp", "last.pt")
    assert not os.path.exists("last.pt.tmp")


def beside_and_renamed_by_path() -> None:
    torch.save({"epoch": 8}, Path("last.tmp"))
    Path("last.tmp").rename("last.pt")


def best_is_copied() -> None:
    torch.save({"epoch": 8}, "last.pt")
    shutil.copyfile("last.pt", "best.pt")
    shutil.copy2("last.pt", "other.pt")
    assert torch.load("best.pt") == torch.load("other.pt") == {"epoch": 8}


def older_is_removed() -> None:
    torch.save({"epoch": 8}, "last.pt")
    os.remove("best.pt")
    Path("last.pt").unlink()
    torch.save({"epoch": 8}, "last.pt")


def older_is_moved_away() -> None:
    os.rename("last.pt", "before.pt")
    assert torch.load("before.pt") == {"epoch": 7}
    torch.save({"epoch": 8}, "last.pt")


def opened_by_the_job() -> None:
    with open("last.pt", "wb") as file:
        torch.save({"epoch": 8}, file)
    with open("last.pt", "rb") as file:
        assert torch.load(file) == {"epoch": 8}
    with open("scores.pkl", "wb") as file:
        pickle.dump([2], file)
    assert pickle.loads(Path("scores.pkl").read_bytes()) == [2]


def linked() -> None:
    os.makedirs("deep")
    torch.save({"epoch": 8}, "deep/last.pt")
    os.symlink("last.pt", "deep/latest")
    assert torch.load("deep/latest") == {"epoch": 8}
    torch.save({"epoch": 8}, "last.pt")


def looked_at() -> None:
    os.makedirs("deep")
    torch.save({"epoch": 8}, "deep/new.pt")
    assert Path("deep/new.pt").exists() and os.path.getsize("deep/new.pt") > 0
    os.chmod("deep/new.pt", 0o600)
    torch.save({"epoch": 8}, "last.pt")


def folder_is_wiped_and_made_anew() -> None:
    os.makedirs("deep")
    shutil.rmtree("deep")
    assert not os.path.exists("deep")
    shutil.rmtree("old")
    assert not os.path.exists("old/first.pt")
    os.makedirs("old")
    with open("old/notes.txt", "w") as file:
        file.write("new")
    assert os.listdir("old") == ["notes.txt"]
    torch.save({"epoch": 8}, "last.pt")


def folder_is_moved_away() -> None:
    os.rename("old", "older")
    assert torch.load("older/first.pt") == {"epoch": 1}
    torch.save({"epoch": 2}, "older/first.pt")
    os.mkdir("old")
    assert os.listdir("old") == [] and os.path.isdir("older")
    torch.save({"epoch": 8}, "last.pt")


def moved_away_and_written_over() -> None:
    shutil.move("last.pt", "before.pt")
    torch.save({"epoch": 0}, "before.pt")
    with open("best.pt", "rb+") as file:
        file.write(b"broken")
    torch.save({"epoch": 8}, "last.pt")


def found_by_listing() -> None:
    os.makedirs("deep")
    torch.save({"epoch": 8}, "deep/last.pt")
    assert glob.glob("deep/*.pt") == ["deep/last.pt"]
    assert [p.name for p in Path("deep").iterdir()] == ["last.pt"]
    torch.save({"epoch": 2}, "old/second.pt")
    assert sorted(glob.glob("old/*.pt")) == ["old/first.pt", "old/second.pt"]
    assert sorted(os.listdir("old")) == ["first.pt", "latest", "second.pt"]
    while len(glob.glob("old/*.pt")) > 1:
        os.remove(min(glob.glob("old/*.pt"), key=os.path.getmtime))
    assert sorted(os.listdir("old")) == ["latest", "second.pt"]
    torch.save({"epoch": 8}, "last.pt")


def beside_what_was_saved() -> None:
    scripted = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
    torch.jit.save(scripted, "deep.pt")
    torch.save({"epoch": 8}, "new/last.pt")
    with open("new/notes.txt", "w") as file:
        file.write("new")
    os.makedirs("new/sub")
    shutil.copyfile("new/notes.txt", "new/sub/notes.txt")
    assert os.listdir("new/sub") == ["notes.txt"]
    torch.save({"epoch": 8}, "last.pt")


def says_which_is_the_latest() -> None:
    torch.save({"epoch": 8}, "old/step8/model.pt")
    with open("old/latest", "w") as file:
        file.write("step8")
    assert Path("old/latest").read_text() == "step8"
    os.remove("old/latest")
    with open("old/latest.tmp", "w") as file:
        file.write("step9")
    os.replace("old/latest.tmp", "old/latest")
    assert Path("old/latest").read_text() == "step9"
    torch.save({"epoch": 8}, "last.pt")


def imported_before_torch() -> None:
    main = sys.modules["__main__"]
    main.replaces("best.pt", "last.pt")
    assert torch.load("last.pt") == {"epoch": 5} and not os.path.exists("best.pt")
    torch.save({"epoch": 8}, "last.pt")


def pickled() -> None:
    for call in (open, os.remove, shutil.copy2):
        assert pickle.loads(pickle.dumps(call)) is call
    torch.save({"epoch": 8}, "last.pt")


@pytest.mark.parametrize(
    "habit",
    [
        beside_and_renamed,
        beside_and_renamed_by_path,
        best_is_copied,
        older_is_removed,
        older_is_moved_away,
        opened_by_the_job,
        linked,
        looked_at,
        folder_is_wiped_and_made_anew,
        folder_is_moved_away,
        moved_away_and_written_over,
        found_by_listing,
        beside_what_was_saved,
        says_which_is_the_latest,
        imported_before_torch,
        pickled,
    ],
)
def test_a_habit_with_checkpoints_works_and_leaves_the_users_alone(
    habit: Callable[[], None], run_dir: Path
) -> None:
    names = ["best.pt", "last.pt", "old", "old/first.pt", "old/latest", "scores.pkl"]
    theirs = {Path(n): Path(n).read_bytes() for n in names if n != "old"}
    habit()
    assert torch.load("last.pt") == {"epoch": 8}
    with builtins.open("log.txt", "w") as file:
        file.write("plain files are written where they are")
    GUEST.detach()
    assert {p: p.read_bytes() for p in theirs} == theirs
    found = set(glob.glob("**", recursive=True))
    assert found - {*names} <= {"log.txt", "deep"}
    assert str(Path("last.pt").absolute()) in read_footprints(run_dir)["saved"]


def test_what_is_removed_and_moved_is_told(run_dir: Path) -> None:
    older_is_moved_away()
    older_is_removed()
    here = Path.cwd()
    assert read_footprints(run_dir)["kept"] == [str(here / "last.pt"), str(here / "best.pt")]


def test_a_folder_with_many_files_is_kept_and_moved(run_dir: Path) -> None:
    os.makedirs("cache")
    for i in range(1100):
        Path(f"cache/{i}").touch()
    (run_dir / "spec.json").touch()
    mirror = Mirror(run_dir, Footprints(run_dir))
    GUEST.detach()
    redirect_moves(mirror)
    os.rename("cache", "moved")
    assert os.path.isdir("moved")
    (run_dir / "spec.json").touch()
    shutil.rmtree("moved")
    GUEST.detach()
    assert len(os.listdir("moved")) == 1100, "nobody looked at all of them"


def test_without_room_a_checkpoint_is_nobodys_loss(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "LEAST_ROOM_BYTES", 1 << 60)
    torch.save({"epoch": 8}, "last.pt")
    with open("best.pt", "xb") as file:
        file.write(b"new")
    assert not (run_dir / "saved").exists()
    GUEST.detach()
    assert torch.load("last.pt") == {"epoch": 7} and torch.load("best.pt") == {"epoch": 5}


def test_other_files_are_as_before(run_dir: Path) -> None:
    Path("a.txt").write_text("a")
    os.replace("a.txt", "b.txt")
    shutil.copy("b.txt", "c.txt")
    shutil.move("c.txt", "d.txt")
    os.symlink("b.txt", "e.txt")
    os.remove("b.txt")
    assert sorted(n for n in os.listdir() if n.endswith(".txt")) == ["d.txt", "e.txt"]
    with pytest.raises(FileNotFoundError):
        open("no-such-file")
    found = read_footprints(run_dir)
    assert "saved" not in found and "kept" not in found
    assert found["wrote"] == [
        str(Path.cwd() / name) for name in ("a.txt", "b.txt", "c.txt", "d.txt")
    ]


def test_a_class_may_hold_them(run_dir: Path) -> None:
    """A built-in in a class is no method; what stands for it must be none either."""

    holder = type("Holder", (), {"open": open, "stat": os.stat})()
    with holder.open("a.txt", "w") as file:
        file.write("a")
    assert holder.stat("a.txt").st_size == 1


def test_another_process_of_the_job_finds_it(run_dir: Path) -> None:
    torch.save({"epoch": 8}, "last.pt")
    second = Mirror(run_dir, Footprints(run_dir))
    assert second.read("last.pt") == second.place("last.pt") != "last.pt"


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_habits_work_in_every_python_of_a_job(version: str, run_dir: Path) -> None:
    GUEST.detach()
    found = [str(p) for p in (Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python")]
    found += [sys.executable] if sys.version.startswith(f"{version}.") else []
    if not found:
        pytest.skip(f"no Python {version} on this machine")
    folder = run_dir.parent / "job"
    (folder / "old").mkdir(parents=True)
    for name in ("last.pt", "best.pt", "old/first.pt"):
        (folder / name).write_bytes(b"user")
    (run_dir / "spec.json").touch()
    source = Path(aiak_tune.__path__[0]).parent
    done = subprocess.run(
        [found[0], str(JOBS / "file_habits.py"), str(run_dir)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
