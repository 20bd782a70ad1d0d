"""`run`: the job's own end under a plan, and what is said where the plan did not come to work."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from running import JOBS, wait_until

from aiak_tune.errors import JobError, PlanError
from aiak_tune.optimizations.base import Numerics, Settings
from aiak_tune.profiles.workload import Environment
from aiak_tune.selector.plan import dump_plan
from aiak_tune.selector.results import Plan, PlanJob
from aiak_tune.selector.run_plan import here, run_plan

PYTHON = sys.executable
FUSED: Settings = {"fused-optimizer": {"fused": True}}
PLAN = Plan(
    tuning_id="01JE5Q3X7N0000000000000001",
    job=PlanJob(fingerprint=None, model_fingerprint=None, name="small.py"),
    environment=here(),
    settings=FUSED,
    speedup=1.2,
    ci95=(1.1, 1.3),
    numerics=Numerics.LOSSLESS,
)


class Ran:
    """One run in this process: its code, and what was said."""

    def __init__(self, *command: str, plan: Plan | None = PLAN, **options: bool) -> None:
        self.notes: list[str] = []
        asked: dict[str, Any] = {"force": False, "fallback": True, **options}
        self.code = run_plan(command, plan, note=self.notes.append, **asked)


@pytest.mark.parametrize("plan", [None, PLAN], ids=["no plan", "plan"])
@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_code_is_the_jobs_own(script: str, code: int, plan: Plan | None) -> None:
    assert Ran("sh", "-c", script, plan=plan).code == code


def test_without_settings_nothing_of_ours_is_in_the_job(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/users/own")
    for plan in (None, replace(PLAN, settings={})):
        ran = Ran("sh", "-c", 'echo "$PYTHONPATH:$AIAK_TUNE_SPEC"', plan=plan)
        assert (ran.code, ran.notes) == (0, [])
        assert capfd.readouterr().out == "/users/own:\n"


@pytest.mark.slow
def test_a_job_under_a_plan_saves_where_it_says_and_keeps_its_trackers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "online")
    Path("last.pt").touch()
    script = (
        "import os, torch\n"
        "torch.save(1, 'last.pt')\n"
        "os.replace('last.pt', 'best.pt')\n"
        "print(type(open).__name__, os.environ['WANDB_MODE'], 'AIAK_TUNE_SPEC' in os.environ)\n"
    )
    assert Ran(PYTHON, "-c", script).code == 0
    assert capfd.readouterr().out == "builtin_function_or_method online True\n"
    assert os.listdir() == ["best.pt"] and Path("best.pt").stat().st_size > 0


def test_what_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text("not a program")
    script.chmod(0o755)
    with pytest.raises(JobError, match="no program that can be run"):
        Ran("no-such-program")
    with pytest.raises(JobError, match="cannot be started: Exec format error"):
        Ran(str(script))


def test_a_plan_of_another_machine_is_refused_naming_the_difference() -> None:
    elsewhere = replace(PLAN, environment=Environment(cores=12345))
    with pytest.raises(PlanError, match="cores: 12345 in the plan, .* here.*--force"):
        Ran("true", plan=elsewhere)
    assert Ran("true", plan=elsewhere, force=True).code == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-I"], "the plan was not applied: no Python process of the job loaded the agent"),
        (["-E"], "the plan was not applied: no Python process of the job loaded the agent"),
        ([], "the plan was not applied: the job ended without importing torch"),
    ],
)
def test_a_plan_that_never_came_to_work_is_said(options: list[str], said: str) -> None:
    ran = Ran(PYTHON, *options, "-c", "print('trained')")
    assert ran.code == 0
    (note,) = ran.notes
    assert note.startswith(said)


# A torch that is none: it is there, and ends the job before a step.


@pytest.fixture
def early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command whose script counts its starts in `starts` and dies, under an agent or not."""
    (tmp_path / "torch.py").write_text("__version__ = '2.6.0'\n")
    (tmp_path / "train.py").write_text(
        "import os, torch\nopen('starts', 'a').write(f\"{'AIAK_TUNE_SPEC' in os.environ}\\n\")\n"
        "raise SystemExit(9)\n"
    )
    monkeypatch.chdir(tmp_path)
    return [PYTHON, "train.py"]


def test_a_job_that_dies_early_is_started_once_more_as_written(early: list[str]) -> None:
    ran = Ran(*early)
    assert ran.code == 9
    assert Path("starts").read_text() == "True\nFalse\n"
    assert "ended with 9 before its step 20 under the plan" in ran.notes[-1]
    assert "starting it once more as written (--no-fallback would not)" in ran.notes[-1]


def test_no_fallback_starts_it_once(early: list[str]) -> None:
    assert Ran(*early, fallback=False).code == 9
    assert Path("starts").read_text() == "True\n"


def test_a_job_that_nothing_of_ours_was_in_is_not_started_again(early: list[str]) -> None:
    script = "open('starts', 'a').write('x'); raise SystemExit(9)"
    assert Ran(early[0], "-I", "-c", script).code == 9
    assert Path("starts").read_text() == "x"


def test_a_fault_of_ours_is_said(early: list[str]) -> None:
    Path("train.py").write_text("import torch\nprint('trained')\n")
    ran = Ran(*early)
    assert ran.code == 0
    assert ran.notes[0].startswith("aiak-tune's agent failed in the job and left it alone: ")


def test_a_run_folder_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    with pytest.raises(JobError, match="no run folder can be made in /no/such/folder"):
        Ran("true")


# Signals, as the terminal or a scheduler sends them.

TRAPS = """
trap 'echo got TERM; exit 7' TERM
trap 'echo got USR1; exit 8' USR1
trap 'echo got INT; exit 1' INT
echo up; echo $$ >&2
while :; do sleep 0.02; done
"""


class Tool:
    """The command in a process group of its own, with an input and an output to look at."""

    def __init__(self, folder: Path, *command: str, plan: Plan = PLAN) -> None:
        (folder / "plan.json").write_text(dump_plan(plan))
        words = [PYTHON, "-m", "aiak_tune", "run", "--plan", str(folder / "plan.json"), "--"]
        self.process = subprocess.Popen(
            [*words, *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, process_group=0, cwd=folder,
        )  # fmt: skip

    def up(self) -> int:
        """Wait until the job is up; return its process."""
        assert self.process.stdout is not None and self.process.stderr is not None
        assert self.process.stdout.readline() == "up\n"
        return int(self.process.stderr.readline())

    def ended(self, given: str = "") -> tuple[str, str]:
        return self.process.communicate(given, timeout=60)


@pytest.mark.parametrize(
    ("number", "out", "code"),
    [(signal.SIGTERM, "got TERM\n", 7), (signal.SIGUSR1, "got USR1\n", 8)],
)
def test_a_signal_reaches_the_job(
    number: signal.Signals, out: str, code: int, tmp_path: Path
) -> None:
    tool = Tool(tmp_path, "bash", "-c", TRAPS)
    tool.up()
    tool.process.send_signal(number)
    assert tool.ended()[0] == out
    assert tool.process.returncode == code


def test_a_job_that_was_asked_to_end_is_not_started_again(tmp_path: Path) -> None:
    # As Ctrl-C in a terminal: the whole group gets it. The agent is in the job, but no step is.
    script = f"{PYTHON} -c ''; {TRAPS}"
    tool = Tool(tmp_path, "bash", "-c", script)
    tool.up()
    os.killpg(tool.process.pid, signal.SIGINT)
    out, err = tool.ended()
    assert (tool.process.returncode, out) == (1, "got INT\n")
    assert "once more" not in err


def test_input_and_output_are_the_users(tmp_path: Path) -> None:
    tool = Tool(tmp_path, PYTHON, "-c", "print(input()[::-1]); raise SystemExit(0)")
    out, err = tool.ended("abc\n")
    assert (tool.process.returncode, out) == (0, "cba\n")
    assert err.startswith("aiak-tune: the plan was not applied")


def test_kill_minus_nine_of_the_tool_asks_the_job_to_end(tmp_path: Path) -> None:
    tool = Tool(tmp_path, "bash", "-c", TRAPS)
    job = tool.up()
    tool.process.kill()
    wait_until(lambda: not Path(f"/proc/{job}").exists(), "the job is gone", deadline_s=10)


# Under a real torch.


def _small(*options: str) -> tuple[str, ...]:
    return PYTHON, str(JOBS / "small.py"), "--steps", "40", *options


@pytest.mark.slow
def test_a_plan_that_breaks_the_job_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    ran = Ran(*_small("--no-fused"))
    out, err = capfd.readouterr()
    assert (ran.code, out) == (0, "trained 40 steps\n")
    assert "this model cannot stand a fused update" in err
    assert len(ran.notes) == 1
    assert "starting it once more as written" in ran.notes[0]


@pytest.mark.slow
def test_a_plan_of_another_model_is_not_applied(capfd: pytest.CaptureFixture[str]) -> None:
    job = replace(PLAN.job, model_fingerprint="model1:of-another-job")
    # The script would end with an error if the update were fused.
    ran = Ran(*_small("--no-fused"), plan=replace(PLAN, job=job))
    assert (ran.code, capfd.readouterr().out) == (0, "trained 40 steps\n")
    (note,) = ran.notes
    assert note.endswith("nothing further is applied, and what was is taken back")


@pytest.mark.slow
def test_a_plan_that_works_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    ran = Ran(*_small())
    assert (ran.code, capfd.readouterr().out, ran.notes) == (0, "trained 40 steps\n", [])


def test_a_job_whose_own_error_comes_before_anything_is_applied_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong argument of the user's must not start the job twice."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "wrong.py"
    script.write_text("import torch\nopen('starts', 'a').write('x')\nraise SystemExit(2)\n")
    ran = Ran(PYTHON, str(script))
    assert ran.code == 2 and Path("starts").read_text() == "x"
    assert not any("once more" in note for note in ran.notes)
