"""A trial's checkpoints stay away from the user's."""

import os
from pathlib import Path

import pytest
import torch
from slices import guesting

from aiak_tune.agent.footprints import read_footprints
from aiak_tune.agent.guest import GUEST
from aiak_tune.agent.protect import redirect_saves


def test_an_existing_checkpoint_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "model.pt"
    torch.save({"epoch": 7}, theirs)
    before = theirs.read_bytes()
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    monkeypatch.chdir(tmp_path)
    with guesting(run_dir):
        redirect_saves(torch, run_dir)
        assert torch.load("model.pt") == {"epoch": 7}
        torch.save({"epoch": 8}, "model.pt")
        torch.save({"epoch": 9}, tmp_path / "new.pt")
        torch.serialization.save({"epoch": 10}, os.fspath(theirs))
        assert torch.load(theirs) == {"epoch": 10}, "the job reads what it wrote"
        with open(tmp_path / "own.pt", "wb") as file:
            torch.save(1, file)
    assert theirs.read_bytes() == before
    assert not (tmp_path / "new.pt").exists() and not (tmp_path / "own.pt").exists()
    assert torch.load(theirs) == {"epoch": 7}


def test_a_full_disk_does_not_turn_to_the_users_file(tmp_path: Path) -> None:
    theirs = tmp_path / "model.pt"
    with guesting(tmp_path / "gone"):
        redirect_saves(torch, tmp_path / "gone" / "deeper")
        torch.save(1, theirs)
    assert not theirs.exists()
    assert GUEST.detached


def test_weights_that_are_fetched_are_kept_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    torch.save({"epoch": 1}, tmp_path / "there.pth")
    (tmp_path / "home").mkdir()
    with guesting(tmp_path / "run"):
        redirect_saves(torch, tmp_path / "run")
        torch.hub.download_url_to_file(f"file://{tmp_path}/there.pth", f"{tmp_path}/got.pth")
        with open(tmp_path / "home/cached.pth", "wb") as file:
            file.write(b"weights")
        torch.hub.download_url_to_file(f"file://{tmp_path}/there.pth", f"{tmp_path}/got.pth")
    assert torch.load(tmp_path / "got.pth") == {"epoch": 1}
    assert (tmp_path / "home/cached.pth").read_bytes() == b"weights"
    assert read_footprints(tmp_path / "run")["saved"] == [f"{tmp_path}/got.pth"], "the second time"
