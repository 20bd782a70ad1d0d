"""One tuning at a time: who comes second waits and says so, or is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import wait_until

from aiak_tune.errors import JobError, UsageError
from aiak_tune.selector.lock import one_at_a_time

HOLD = """
import sys, time
from pathlib import Path
from aiak_tune.selector.lock import one_at_a_time
with one_at_a_time(Path(sys.argv[1]), "python train.py", wait=False, note=print):
    Path(sys.argv[1] + ".held").touch()
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "lock")])
    wait_until((tmp_path / "lock.held").exists, "the other holds the lock")
    return process


def test_the_second_is_refused_or_waits_and_says_for_whom(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    place = tmp_path / "lock"
    who = f"process {holder.pid}: python train.py"
    try:
        with pytest.raises(UsageError, match=f"another tuning runs on this machine .{who}"):
            with one_at_a_time(place, "mine", wait=False, note=print):
                raise AssertionError("it has the lock")
        told: list[str] = []

        def note(text: str) -> None:
            told.append(text)
            holder.kill()  # the kernel lets go of its lock

        with one_at_a_time(place, "mine", wait=True, note=note):
            assert place.read_text() == f"process {os.getpid()}: mine\n"
        (text,) = told
        assert who in text
        assert "waiting for it to end (Ctrl-C stops waiting)" in text
    finally:
        holder.kill()
        holder.wait()


def test_it_can_be_had_again_and_again(tmp_path: Path) -> None:
    for _ in range(2):
        with one_at_a_time(tmp_path / "lock", "mine", wait=False, note=print):
            pass


def test_a_child_of_the_holder_does_not_keep_it(tmp_path: Path) -> None:
    with one_at_a_time(tmp_path / "lock", "mine", wait=False, note=print):
        child = subprocess.Popen(["sleep", "600"])
    try:
        with one_at_a_time(tmp_path / "lock", "mine", wait=False, note=print):
            pass
    finally:
        child.kill()
        child.wait()


def test_a_lock_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    place = tmp_path / "none" / "lock"
    with pytest.raises(JobError, match=f"the lock {place} cannot be made"):
        with one_at_a_time(place, "mine", wait=False, note=print):
            raise AssertionError("it has the lock")


@pytest.mark.root
def test_a_full_disk_costs_the_name_alone(tmp_path: Path) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    if os.geteuid() or os.system(f"mount -t tmpfs -o size=16k none {folder}"):
        pytest.skip("needs root, to mount a small file system")
    try:
        os.system(f"cat /dev/zero >{folder}/filled 2>/dev/null")
        with one_at_a_time(folder / "lock", "mine", wait=False, note=print):
            assert (folder / "lock").read_text() == ""
    finally:
        os.system(f"umount {folder}")
