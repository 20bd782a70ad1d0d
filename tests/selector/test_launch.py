"""Starts of jobs: what they get, how they are watched, and how they end."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from running import JOBS, QUICK, processes_with, start, wait_until

from aiak_tune.agent.spec import RunSpec
from aiak_tune.errors import JobError
from aiak_tune.selector.diagnosis import diagnose
from aiak_tune.selector.launch import (
    SLICE_OVER,
    Limits,
    job_environment,
    launch,
)
from aiak_tune.selector.progress import Progress, ProgressReader

PYTHON = sys.executable
# What a job with no torch tells, written by hand: a step, and then it hangs.
ONE_STEP = """
import json, os, time
line = {"phase": "warm-up", "step": 1, "counted": 0, "steps_ms": []}
folder = os.path.dirname(os.environ["AIAK_TUNE_SPEC"])
with open(os.path.join(folder, "progress-0.jsonl"), "a") as file:
    file.write(json.dumps(line) + "\\n")
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["true"], "no Python process of the job loaded the agent"),
        (["ls"], "no Python process of the job loaded the agent"),
        ([PYTHON, "-I", "-c", "print(1)"], "does it start python with -I, -E or -S"),
        ([PYTHON, "-E", "-c", "print(1)"], "does it start python with -I, -E or -S"),
        (["env", "-i", PYTHON, "-c", "print(1)"], "through env -i or sudo"),
        ([PYTHON, "-c", "print(1)"], "the job ended without importing torch"),
        (["no-such-program"], "cannot start no-such-program: No such file or directory"),
        (["bash", "-c", "no-such-program"], "no-such-program: command not found"),
        ([PYTHON, "-c", "raise ValueError('no data')"], "exit code 1: ValueError: no data"),
        (["sh", "-c", "kill -9 $$"], "the job was ended by signal 9: it printed nothing"),
    ],
    ids=lambda v: " ".join(v[1:])[:30] if isinstance(v, list) else "",
)
def test_a_job_without_a_step_says_why(command: list[str], said: str, tmp_path: Path) -> None:
    outcome = start(command, tmp_path / "run")
    problem = diagnose(outcome)
    assert problem is not None
    assert said in problem.text


@pytest.mark.parametrize(
    ("version", "said"),
    [("3.12", "the job ended without importing torch"), ("3.8", "the job runs Python 3.8: it ")],
)
def test_another_python_than_the_tools_is_told_of(version: str, said: str, tmp_path: Path) -> None:
    found = [*(Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")]
    if not found:
        pytest.skip(f"no Python {version} on this machine")
    outcome = start([str(found[0]), "-c", "print(1)"], tmp_path / "run")
    assert [birth.python for birth in outcome.births] == [version]
    problem = diagnose(outcome)
    assert problem is not None
    assert problem.text.startswith(said)


def test_no_first_step_within_the_limit_ends_the_job(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo waiting for the others; sleep 600"]
    outcome = start(command, tmp_path / "run", limits=Limits(first_step_s=0.2))
    problem = diagnose(outcome)
    assert problem is not None
    assert (problem.code, problem.text) == (
        "timeout",
        "no step within 0 s (torch not imported yet)",
    )
    assert problem.tail == "waiting for the others"


def test_no_further_step_within_the_limit_ends_the_job(tmp_path: Path) -> None:
    limits = Limits(first_step_s=60, stall_s=0.2)
    outcome = start([PYTHON, "-c", ONE_STEP], tmp_path / "run", limits=limits)
    problem = diagnose(outcome)
    assert problem is not None
    assert (problem.code, problem.text) == ("timeout", "no step for 0 s after step 1")


def test_who_watches_can_end_the_job(tmp_path: Path) -> None:
    seen: list[int] = []

    def watch(progress: Progress) -> str | None:
        seen.append(progress.step)
        return "clearly slower: enough" if progress.step else None

    outcome = start([PYTHON, "-c", ONE_STEP], tmp_path / "run", watch=watch)
    assert outcome.stopped == "clearly slower: enough"
    # How often it is asked before the job's first line is the machine's affair.
    assert seen == [0] * (len(seen) - 1) + [1]


def test_an_interrupt_passes_when_everything_is_gone(tmp_path: Path) -> None:
    def watch(progress: Progress) -> str | None:
        if processes_with(str(tmp_path / "run")):
            raise KeyboardInterrupt
        return None

    with pytest.raises(KeyboardInterrupt):
        start(["sh", "-c", "sleep 600 & sleep 600"], tmp_path / "run", watch=watch)
    assert processes_with(str(tmp_path / "run")) == []


def test_the_users_variables_stay_and_trackers_are_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/users/own")
    monkeypatch.setenv("WANDB_MODE", "online")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    spec = RunSpec(run_dir=str(run_dir), slice=QUICK, environment={"OMP_NUM_THREADS": "7"})
    script = "echo $PYTHONPATH $HOME $WANDB_MODE $OMP_NUM_THREADS"
    outcome = launch(["sh", "-c", script], spec)
    path, home, mode, threads = outcome.tail.split()
    assert path.endswith("/agent/bootstrap:/users/own")
    assert (home, mode, threads) == (os.environ["HOME"], "disabled", "7")


def test_a_line_of_progress_cut_by_a_full_disk_is_passed_over(tmp_path: Path) -> None:
    line = {"phase": "counting", "step": 3, "counted": 1, "steps_ms": [2.5]}
    whole = json.dumps(line)
    (tmp_path / "progress-0.jsonl").write_text(f"{whole[:20]}\n{whole}\n{whole[:-9]}")
    reader = ProgressReader(tmp_path)
    assert reader.read()
    assert reader.progress == Progress(phase="counting", step=3, counted=1, steps_ms=(2.5,))
    assert not reader.read()


def test_ranks_are_as_far_as_the_last_of_them(tmp_path: Path) -> None:
    def told(rank: int, phase: str, step: int, *steps_ms: float) -> None:
        line = {"phase": phase, "step": step, "counted": len(steps_ms), "steps_ms": steps_ms}
        with open(tmp_path / f"progress-{rank}.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")

    reader = ProgressReader(tmp_path)
    told(0, "counting", 9, 2.0, 3.0)
    told(1, "warm-up", 7)
    told(2, "counting", 9, 4.0, 5.0)
    assert reader.read()
    now = reader.progress
    assert (now.phase, now.step, now.counted, now.steps_ms) == ("warm-up", 7, 0, (4.0, 5.0))
    assert now.behind_text() == " (rank 1; the furthest is at step 9)"
    for rank in (0, 2):
        told(rank, "done", 12)
        assert reader.read()
        assert reader.progress.phase == "warm-up"
    told(1, "done", 12)
    assert reader.read()
    assert (reader.progress.phase, reader.progress.behind_text()) == ("done", "")
    assert not reader.read()


def test_a_run_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=f"run folder {tmp_path}/none cannot be written"):
        launch(["true"], RunSpec(run_dir=str(tmp_path / "none"), slice=QUICK))


def test_a_run_folder_that_the_job_removes_is_named(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pytest.raises(JobError, match=f"run folder {run_dir} cannot be written"):
        start(["rm", "-r", str(run_dir)], run_dir)


# A job that does all that a launcher may stumble over, twice, in two environments.


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The python of another virtual environment: torch is there, the tool is not."""
    import torch

    folder = tmp_path_factory.mktemp("venv")
    os.system(f"{PYTHON} -m venv --without-pip {folder}")
    (site,) = folder.glob("lib/python*/site-packages")
    for package in Path(torch.__file__).parents[1].iterdir():
        if "aiak" not in package.name and package.suffix != ".pth":
            (site / package.name).symlink_to(package)
    return str(folder / "bin" / "python")


class Hostile:
    """One start of jobs/hostile.py, and what it left behind."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder, self.witness = folder, folder / "witness"
        self.witness.mkdir(parents=True)
        for package in ("profiles", "api"):
            (folder / package).mkdir()
            (folder / package / "__init__.py").touch()
        shutil.copy(JOBS / "hostile.py", folder / "train.py")
        (folder / "own").mkdir()
        (folder / "own" / "sitecustomize.py").write_text(
            "import os\nos.environ['HOSTILE_SITECUSTOMIZE'] = 'ran'\n"
        )
        # A script around the training, as people have them: it goes on when the training ends.
        script = f"{python} train.py witness\ntouch witness/after\nsleep 600\n"
        (folder / "train.sh").write_text(script)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("PYTHONPATH", "own")
            self.outcome = start(["bash", "./train.sh"], folder / "run")

    def left(self) -> set[str]:
        return {place.name.rpartition("-")[0] or place.name for place in self.witness.iterdir()}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, other_python: str) -> tuple[Hostile, Hostile]:
    folder = tmp_path_factory.mktemp("hostile")
    return Hostile(folder / "first", PYTHON), Hostile(folder / "other", other_python)


@pytest.mark.slow
def test_a_hostile_job_is_measured(hostile: tuple[Hostile, Hostile]) -> None:
    for run in hostile:
        assert diagnose(run.outcome) is None
        (record,) = run.outcome.results
        assert record.status == "complete"
        assert record.window is not None
        assert len(record.window.steps) == QUICK.steps


@pytest.mark.slow
def test_after_the_slice_nothing_of_the_job_runs(hostile: tuple[Hostile, Hostile]) -> None:
    # No finally, no atexit, no signal handler, no bare except, no next line of the script.
    for run in hostile:
        assert run.left() == {"daemon", "stdin", "imported", "sitecustomize"}
        assert run.outcome.stopped == SLICE_OVER


@pytest.mark.slow
def test_a_job_reads_no_input_and_its_own_modules(hostile: tuple[Hostile, Hostile]) -> None:
    for run in hostile:
        assert (run.witness / "stdin").read_text() == "''"
        assert (run.witness / "sitecustomize").read_text() == "ran"
        own = [str(run.folder / name / "__init__.py") for name in ("profiles", "api")]
        assert (run.witness / "imported").read_text().splitlines() == own


@pytest.mark.slow
def test_megabytes_of_output_are_cut(hostile: tuple[Hostile, Hostile]) -> None:
    for run in hostile:
        tail = run.outcome.tail
        assert len(tail) < 600_000
        assert tail.startswith("the first line\n")
        assert tail.endswith("the last line\n")


@pytest.mark.slow
def test_two_runs_without_a_seed_have_the_same_losses(hostile: tuple[Hostile, Hostile]) -> None:
    losses = [run.outcome.results[0].losses for run in hostile]
    assert losses[0] == losses[1]
    assert len(losses[0]) >= QUICK.parity
    assert None not in losses[0]


@pytest.mark.slow
def test_the_jobs_environment_need_not_be_the_tools(
    hostile: tuple[Hostile, Hostile], other_python: str
) -> None:
    assert subprocess.run([other_python, "-c", "import aiak_tune"], stderr=-3).returncode == 1
    births = [birth.argv.split(" ")[0] for birth in hostile[1].outcome.births]
    assert other_python in births


# What else a real torch is needed for.


@pytest.mark.slow
def test_torch_without_a_step_says_so(tmp_path: Path) -> None:
    outcome = start([PYTHON, "-c", "import torch; torch.ones(2).sum()"], tmp_path / "run")
    problem = diagnose(outcome)
    assert problem is not None
    assert problem.text.startswith("the job imported torch, but no optimizer step was seen")


@pytest.mark.slow
def test_a_hook_that_fails_leaves_the_job_to_its_end(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "spec.json").write_text(RunSpec(run_dir=str(run_dir), slice=QUICK).dump())
    (run_dir / "progress-0.jsonl").mkdir()  # the agent cannot tell its progress
    done = subprocess.run(
        [PYTHON, str(JOBS / "small.py"), "--steps", "40"],
        env=job_environment(run_dir, {}), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "trained 40 steps\n")
    (fault,) = run_dir.glob("fault-*.txt")
    assert fault.read_text().splitlines()[-1].startswith("IsADirectoryError")


@pytest.mark.slow
@pytest.mark.root
def test_a_disk_that_fills_up_is_named(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    if os.geteuid() or os.system(f"mount -t tmpfs -o size=64k none {run_dir}"):
        pytest.skip("needs root, to mount a small file system")
    try:
        with pytest.raises(JobError, match=f"run folder {run_dir} .*(full|No space)"):
            # The trace of the profiled steps is larger than the disk.
            start([PYTHON, str(JOBS / "small.py")], run_dir, plan=replace(QUICK, profiled=3))
        assert processes_with(str(run_dir)) == []
    finally:
        os.system(f"umount {run_dir}")


@pytest.mark.root
def test_a_disk_that_is_full_at_the_end_is_named(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    if os.geteuid() or os.system(f"mount -t tmpfs -o size=64k none {run_dir}"):
        pytest.skip("needs root, to mount a small file system")
    try:
        with pytest.raises(JobError, match=f"run folder {run_dir} cannot be written: No space"):
            start(["sh", "-c", f"yes | head -c 200000; yes > {run_dir}/filled"], run_dir)
    finally:
        os.system(f"umount {run_dir}")


def test_kill_minus_nine_of_the_tool_leaves_nobody(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    script = (
        "import sys; from aiak_tune.agent.spec import RunSpec, SlicePlan\n"
        "from aiak_tune.selector.launch import launch\n"
        f"launch(['sh', '-c', '(setsid sleep 600 &) ; sleep 600'],"
        f" RunSpec(run_dir={str(run_dir)!r}, slice=SlicePlan()))"
    )
    tool = subprocess.Popen([PYTHON, "-c", script])
    wait_until(lambda: len(processes_with(str(run_dir))) >= 3, "the job is up")
    tool.kill()
    tool.wait()
    wait_until(lambda: not processes_with(str(run_dir)), "the job is gone", deadline_s=10)


def test_the_outcome_of_a_damaged_result_is_an_error(tmp_path: Path) -> None:
    script = "import os; d = os.path.dirname(os.environ['AIAK_TUNE_SPEC'])\n"
    script += "open(d + '/result-0.json', 'w').write('{\"schema\": 99}')"
    with pytest.raises(JobError, match="a rank's result cannot be read: result of schema 99"):
        start([PYTHON, "-c", script], tmp_path / "run")
