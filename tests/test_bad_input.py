"""What bad input gets (DESIGN.md section 9), at the command line: code, words, nobody left."""

import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from running import JOBS, processes_with, wait_until

from aiak_tune.api.store import open_store
from aiak_tune.cli import main
from aiak_tune.selector.results import Failed, Measured, TuningResult

PYTHON = sys.executable
ONLY_ONE = "the archive is open in another process"


@pytest.fixture(autouse=True)
def nothing_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("AIAK_TUNE_STORE", f"sqlite:///{tmp_path / 'tunings.db'}")
    monkeypatch.chdir(tmp_path)


NEVER = "no Python process of the job loaded the agent: does it start python with -I, -E or -S"
BAD = {
    "not found": (["no-such-program"], "'no-such-program' is no program that can be run here", ""),
    "no script": ([PYTHON, "none.py"], "ended with exit code 2", "can't open file"),
    "not Python": (["true"], NEVER, ""),
    "prints only": (["ls", "/"], NEVER, "proc"),
    "-I": ([PYTHON, "-I", "-c", "print('trained')"], NEVER, "trained"),
    "env -i": (["env", "-i", PYTHON, "-c", "print('trained')"], NEVER, "trained"),
    "no torch": ([PYTHON, "-c", "print('trained')"], "without importing torch", "trained"),
    "always fails": (
        [PYTHON, "-c", "raise ValueError('no such data set')"],
        "it has to run by itself first: does the same command without aiak-tune?",
        "ValueError: no such data set",
    ),
}


@pytest.mark.parametrize("verb", ["profile", "tune"])
@pytest.mark.parametrize(("command", "said", "line"), BAD.values(), ids=list(BAD))
def test_a_job_that_cannot_be_measured(
    verb: str, command: list[str], said: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main([verb, "--", *command]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert line in err
    assert list(Path("data").glob("aiak-tune/runs/*")) == []
    if verb == "tune" and "not found" not in said and command[0] != "no-such-program":
        with open_store() as store:
            (tuning,) = store.newest(limit=5)
        assert tuning.verdict == "failed"
        assert said in (tuning.verdict_reason or "")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["no-such-program"], 125),
        ([PYTHON, "none.py"], 2),
        (["true"], 0),
        ([PYTHON, "-I", "-c", "raise SystemExit(4)"], 4),
    ],
)
def test_run_gives_the_jobs_own_code(command: list[str], code: int) -> None:
    assert main.main(["run", "--", *command]) == code


@pytest.mark.slow
def test_a_job_shorter_than_the_slice_is_measured_and_flagged() -> None:
    job = [PYTHON, str(JOBS / "small.py"), "--steps", "18"]
    assert main.main(["profile", "--json", "profile.json", "--", *job]) == 0
    profile = json.loads(Path("profile.json").read_text())
    assert 1 <= profile["steps"]["counted"] <= 18 - 12
    assert profile["breakdown_ms"] is None
    warnings = {warning["code"]: warning["text"] for warning in profile["warnings"]}
    assert "too_few_steps" in warnings


@pytest.mark.slow
def test_a_job_with_its_own_profiler_has_step_times_and_no_breakdown() -> None:
    job = [PYTHON, str(JOBS / "small.py"), "--profiled"]
    options = ["--steps", "20", "--json", "profile.json"]
    assert main.main(["profile", *options, "--", *job]) == 0
    profile = json.loads(Path("profile.json").read_text())
    assert profile["steps"]["counted"] >= 20
    assert profile["breakdown_ms"] is None
    assert "own_profiler" in {warning["code"] for warning in profile["warnings"]}


# One tuning that is interrupted in every way, and goes on each time.


class Tool:
    """`aiak-tune` as a process of its own, in a folder that marks all that it starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job = [PYTHON, str(JOBS / "workers.py")]
        self.environment = {
            **os.environ,
            "XDG_DATA_HOME": str(folder / "data"),
            "AIAK_TUNE_STORE": f"sqlite:///{folder / 'tunings.db'}",
            "COLUMNS": "120",
        }

    def tune(self, *options: str, terminal: int | None = None) -> subprocess.Popen[bytes]:
        (self.folder / "hanging").unlink(missing_ok=True)
        words = [PYTHON, "-m", "aiak_tune", "tune", "--only", "data-workers", "--trials", "3"]
        err = open(self.folder / "err", "wb") if terminal is None else terminal
        return subprocess.Popen(
            [*words, *options, "--", *self.job],
            env=self.environment, cwd=self.folder, stderr=err, stdout=err, stdin=err,
            start_new_session=True,
            preexec_fn=_own_terminal if terminal is not None else None,
        )  # fmt: skip

    def hangs(self, tool: subprocess.Popen[bytes]) -> None:
        """Wait until the tuning has its baseline and a trial hangs."""
        there = (self.folder / "hanging").exists
        wait_until(lambda: there() or tool.poll() is not None, "a trial hangs", deadline_s=120)
        assert tool.poll() is None, self.said()

    def said(self) -> str:
        return (self.folder / "err").read_text(errors="replace")

    def left(self) -> list[int]:
        return processes_with(f"AIAK_TUNE_SPEC={self.folder}")

    def stored(self) -> TuningResult:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AIAK_TUNE_STORE", self.environment["AIAK_TUNE_STORE"])
            with open_store() as store:
                (tuning,) = store.newest(limit=5)
        return tuning


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.slow
def test_a_tuning_interrupted_in_every_way_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    tool = Tool(tmp_path)
    (tmp_path / "hang").touch()

    # Killed outright: the baseline is kept, and nobody is left.
    running = tool.tune()
    tool.hangs(running)
    _second_tuning(tool)
    running.kill()
    running.wait()
    wait_until(lambda: not tool.left(), "the job of a killed tool is gone", deadline_s=10)
    first = tool.stored()
    assert first.verdict == "running"
    (baseline,) = first.trials
    assert isinstance(baseline, Measured)

    # SIGTERM, as a scheduler sends it.
    running = tool.tune("--resume")
    tool.hangs(running)
    running.terminate()
    assert running.wait(30) == 130, tool.said()
    _interrupted(tool, first)
    assert f"--resume {first.id}" in tool.said()

    # Ctrl-C in a terminal.
    ours, theirs = pty.openpty()
    running = tool.tune("--resume", terminal=theirs)
    os.close(theirs)
    tool.hangs(running)
    os.write(ours, b"\x03")
    _read_to_the_end(ours)
    assert running.wait(30) == 130
    _interrupted(tool, first)

    # A full disk under the run folders.
    if not os.geteuid():
        _full_disk(tool)
        _interrupted(tool, first)

    # And on to the end: one trial killed by its own worker, one failing with workers.
    (tmp_path / "hang").unlink()
    running = tool.tune("--resume", "--json", str(tmp_path / "tuning.json"))
    assert running.wait(120) == 0, tool.said()
    last = tool.stored()
    assert (last.id, last.verdict) == (first.id, "no_change")
    kept, killed, failed = last.trials
    assert kept == baseline
    assert isinstance(killed, Failed) and isinstance(failed, Failed)
    assert killed.settings != failed.settings
    assert killed.reason.startswith("the job was ended by signal 9")
    assert failed.reason_code == "crash"
    assert ONLY_ONE in failed.reason
    assert tool.left() == []
    assert list((tmp_path / "data" / "aiak-tune" / "runs").iterdir()) == []


def _interrupted(tool: Tool, first: TuningResult) -> None:
    assert tool.left() == []
    now = tool.stored()
    assert (now.id, now.verdict) == (first.id, "interrupted")
    assert now.trials == first.trials


def _second_tuning(tool: Tool) -> None:
    """Refused, or waiting and saying so, while the first one runs."""
    words = [PYTHON, "-m", "aiak_tune", "tune"]
    holder = "another tuning runs on this machine (process "
    for options, code in (["--no-wait"], 2), ([], 130):
        second = subprocess.Popen(
            [*words, *options, "--", "python", "x.py"],
            env=tool.environment, cwd=tool.folder, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert second.stderr is not None
        said = second.stderr.readline()
        while said and holder not in said:
            said = second.stderr.readline()
        assert holder in said
        assert "workers.py" in said
        if code == 130:
            assert "waiting for it to end" in said
            second.send_signal(signal.SIGINT)
        second.communicate(timeout=30)
        assert second.returncode == code


def _full_disk(tool: Tool) -> None:
    runs = tool.folder / "data" / "aiak-tune" / "runs"
    if os.system(f"mount -t tmpfs -o size=8k none {runs}"):
        return
    try:
        os.system(f"cat /dev/zero >{runs}/filled 2>/dev/null")
        running = tool.tune("--resume")
        assert running.wait(30) == 1
        assert f"{runs}/aiak-run-" in tool.said()
        assert "(No space left on device); free some space" in tool.said()
    finally:
        os.system(f"umount {runs}")


def _read_to_the_end(terminal: int) -> None:
    """Take what a program writes to its terminal: else it waits for us."""
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        os.close(terminal)


def test_a_plan_that_this_version_does_not_know_is_refused_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from contracts.example_tuning import example_tuning

    from aiak_tune.selector.plan import dump_plan, plan_of

    tuning = example_tuning()
    assert tuning.best is not None
    best = replace(tuning.best, settings={"amp": {"dtype": "bfloat16"}})
    plan = plan_of(replace(tuning, best=best))
    assert plan is not None
    document = json.loads(dump_plan(plan))
    for change, said in (
        ({"schema": 2}, "schema"),
        ({"settings": {"warp-drive": {}}}, "warp-drive"),
        ({"settings": {"amp": {"dtype": "float16"}}}, "this version knows bfloat16"),
        ({"settings": {"data-workers": {"num_workers": -3}}}, "this version knows 1 to 64"),
        ({"environment": {**document["environment"], "gpu": "TPU v9"}}, "gpu: TPU v9 in the plan"),
    ):
        Path("plan.json").write_text(json.dumps({**document, **change}))
        assert main.main(["run", "--plan", "plan.json", "--", "touch", "started"]) == 125
        assert said in capsys.readouterr().err
        assert not Path("started").exists()
    assert main.main(["run", "--force", "--plan", "plan.json", "--", "touch", "started"]) == 0
    assert Path("started").exists()
