"""The supervisor: the command's end, its output, and that nothing it spawned is left."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running import processes_with, wait_until

from aiak_tune.selector import supervisor

SCRIPT = Path(supervisor.__file__)
PYTHON = sys.executable
DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(sys.argv[1], "w").close()
        time.sleep(600)
    os._exit(0)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


def _supervise(tmp_path: Path, *command: str, parent: int | None = None) -> subprocess.Popen[str]:
    words = [PYTHON, "-I", "-S", str(SCRIPT), str(tmp_path), str(parent or os.getpid()), "--"]
    return subprocess.Popen(
        [*words, *command],
        env={**os.environ, "SUPERVISED_IN": str(tmp_path)},
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )


def _ended(process: subprocess.Popen[str]) -> str:
    """Wait for the end; return what the supervisor itself complained of."""
    return process.communicate(timeout=60)[1]


def _told(tmp_path: Path) -> dict[str, object]:
    told = json.loads((tmp_path / "supervised.json").read_text())
    assert isinstance(told, dict)
    return told


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9), ("kill -TERM $$", -15)]
)
def test_the_exit_code_is_the_commands(script: str, code: int, tmp_path: Path) -> None:
    assert _ended(_supervise(tmp_path, "sh", "-c", script)) == ""
    assert _told(tmp_path) == {"exit_code": code, "told": False, "killed": 0}


def test_a_command_that_is_not_there_is_said(tmp_path: Path) -> None:
    _ended(_supervise(tmp_path, "no-such-program"))
    assert _told(tmp_path)["exit_code"] == 127
    told = (tmp_path / "output.log").read_text()
    assert told == "cannot start no-such-program: No such file or directory\n"


def test_megabytes_of_output_leave_head_and_tail(tmp_path: Path) -> None:
    script = "print('the first'); print('x' * 5_000_000); print('the last')"
    _ended(_supervise(tmp_path, PYTHON, "-c", script))
    log = (tmp_path / "output.log").read_text()
    assert len(log) < 2 * supervisor.KEPT_BYTES + 100
    assert log.startswith("the first\nxxx")
    assert log.endswith("xxx\nthe last\n")
    left_out = 5_000_000 + len("the first\n\nthe last\n") - 2 * supervisor.KEPT_BYTES
    assert f"[... {left_out} bytes left out ...]" in log


def test_a_daemon_in_a_session_of_its_own_is_ended(tmp_path: Path) -> None:
    _ended(_supervise(tmp_path, PYTHON, "-c", DAEMON, str(tmp_path / "up")))
    assert (tmp_path / "up").exists()
    assert processes_with(f"SUPERVISED_IN={tmp_path}") == []
    assert _told(tmp_path) == {"exit_code": 0, "told": False, "killed": 1}


def test_who_is_left_and_never_stops_writing_holds_nobody_up(tmp_path: Path) -> None:
    _ended(
        _supervise(
            tmp_path, "sh", "-c", "cat /dev/zero & cat /dev/zero & cat /dev/zero & sleep 0.1"
        )
    )
    assert processes_with(f"SUPERVISED_IN={tmp_path}") == []
    assert _told(tmp_path)["exit_code"] == 0


def test_the_last_look_at_the_output_comes_to_an_end() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    calls = []

    class Refilled(supervisor.Output):
        """What is taken is written again, as by a writer that is faster than we are."""

        def take(self, data: bytes) -> None:
            calls.append(len(data))
            assert len(calls) < 100
            os.write(writing, data)

    os.write(writing, b"x" * 65536)
    supervisor.drain(reading, Refilled("unused"))
    assert sum(calls) == 65536
    os.close(reading)
    os.close(writing)


def test_a_command_that_closed_its_output_is_waited_for(tmp_path: Path) -> None:
    _ended(_supervise(tmp_path, "sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 5"))
    assert _told(tmp_path)["exit_code"] == 5


def test_the_command_has_a_programs_usual_signals_and_no_input(tmp_path: Path) -> None:
    show = ["sh", "-c", "cat; grep -E 'SigIgn|SigCgt|SigBlk' /proc/self/status"]
    plain = subprocess.run(show, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    _ended(_supervise(tmp_path, *show))
    assert (tmp_path / "output.log").read_text() == plain.stdout


TRAPS = "trap ': >$0; exit 0' TERM; : >$0.up; while :; do sleep 0.02; done"


@pytest.mark.parametrize(("number", "asked"), [(signal.SIGTERM, True), (signal.SIGUSR1, False)])
def test_when_told_to_stop_it_asks_but_not_after_the_slice(
    number: signal.Signals, asked: bool, tmp_path: Path
) -> None:
    mark = tmp_path / "asked"
    process = _supervise(tmp_path, "bash", "-c", TRAPS, str(mark))
    wait_until((tmp_path / "asked.up").exists, "the command is up")
    process.send_signal(number)
    _ended(process)
    assert processes_with(f"SUPERVISED_IN={tmp_path}") == []
    assert _told(tmp_path)["told"] is True
    assert mark.exists() is asked


def test_who_does_not_listen_is_killed(tmp_path: Path) -> None:
    process = _supervise(
        tmp_path, "bash", "-c", "trap '' TERM; touch $0; sleep 600", str(tmp_path / "up")
    )
    wait_until((tmp_path / "up").exists, "the command is up")
    process.terminate()
    _ended(process)
    assert _told(tmp_path)["exit_code"] == -9
    assert processes_with(f"SUPERVISED_IN={tmp_path}") == []


def test_it_ends_everything_when_its_parent_is_killed(tmp_path: Path) -> None:
    words = [PYTHON, "-I", "-S", str(SCRIPT), str(tmp_path)]
    command = [PYTHON, "-c", DAEMON + "time.sleep(600)", str(tmp_path / "up")]
    tool = f"""
import os, subprocess
subprocess.run([*{words!r}, str(os.getpid()), "--", *{command!r}], start_new_session=True)
"""
    environment = {**os.environ, "SUPERVISED_IN": str(tmp_path)}
    parent = subprocess.Popen([PYTHON, "-c", tool], env=environment)
    wait_until((tmp_path / "up").exists, "the daemon is up")
    parent.kill()
    parent.wait()
    gone = f"SUPERVISED_IN={tmp_path}"
    wait_until(lambda: not processes_with(gone), "all of the job is gone", deadline_s=5)


def test_it_starts_nothing_for_a_parent_that_is_gone(tmp_path: Path) -> None:
    process = _supervise(tmp_path, "touch", str(tmp_path / "started"), parent=1)
    _ended(process)
    assert process.returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    process = _supervise(folder, "rm", "-r", str(folder))
    said = _ended(process)
    assert process.returncode == 74
    assert said == f"the run folder {folder} cannot be written: No such file or directory\n"
