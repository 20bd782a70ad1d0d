"""The bootstrap in fresh interpreters: what it costs, what it hides, and that it never hurts.

A package called `torch` that is none stands in for the real one where only its import matters.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiak_tune.agent.records import read_births, read_torch_births
from aiak_tune.agent.spec import RunSpec, SlicePlan
from aiak_tune.selector.launch import PACKAGE_BOOTSTRAP

OURS = "import sys; print([m for m in sys.modules if m.startswith('aiak_tune')])"
FAKE_TORCH = "__version__ = '{}'\nprint('torch is here')\n"


class Job:
    """A job in a folder of its own: `python` runs a script there under the bootstrap."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_dir, self.packages = folder, folder / "run", folder / "packages"
        self.run_dir.mkdir()
        self.packages.mkdir()
        spec = RunSpec(run_dir=str(self.run_dir), slice=SlicePlan())
        (self.run_dir / "spec.json").write_text(spec.dump())
        self.environment = {
            **os.environ,
            "AIAK_TUNE_SPEC": str(self.run_dir / "spec.json"),
            "PYTHONPATH": f"{PACKAGE_BOOTSTRAP}:{self.packages}",
        }

    def package(self, name: str, text: str) -> None:
        (self.packages / name).mkdir()
        (self.packages / name / "__init__.py").write_text(text)

    def python(
        self, script: str, *, executable: str = sys.executable
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [executable, "-c", script],
            env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    def faults(self) -> list[str]:
        return [place.read_text() for place in self.run_dir.glob("fault-*.txt")]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_without_a_specification_nothing_happens(job: Job) -> None:
    del job.environment["AIAK_TUNE_SPEC"]
    script = f"{OURS}; print(len(sys.meta_path))"
    under = job.python(script)
    del job.environment["PYTHONPATH"]
    plain = job.python(script)
    assert plain.stdout == under.stdout
    assert under.stdout.startswith("[]\n")
    assert [place.name for place in job.run_dir.iterdir()] == ["spec.json"]


def test_until_torch_comes_a_process_costs_one_line(job: Job) -> None:
    done = job.python(OURS)
    assert done.stdout == "[]\n"
    births = read_births(job.run_dir)
    assert [birth.argv.split(" ")[1] for birth in births] == ["-c"]
    assert births[0].parent == os.getpid()
    assert births[0].python == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert {place.name for place in job.run_dir.iterdir()} == {"spec.json", "births"}


def test_a_child_of_the_job_is_born_too(job: Job) -> None:
    job.python("import subprocess, sys; subprocess.run([sys.executable, '-c', ''])")
    assert len(read_births(job.run_dir)) == 2


@pytest.mark.parametrize(
    "before",
    [
        "",
        "import importlib.util; assert importlib.util.find_spec('torch'); ",
        "import importlib.util; assert importlib.util.find_spec('torch.nope') is None; ",
    ],
    ids=["imported", "asked for first", "imported by asking"],
)
def test_the_agent_starts_when_torch_is_imported(before: str, job: Job) -> None:
    job.package("torch", FAKE_TORCH.format("2.6.0"))
    done = job.python(f"{before}import torch; print(torch.__version__)")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "torch is here\n2.6.0\n"
    assert read_torch_births(job.run_dir) == 1


def test_an_import_that_fails_first_is_followed_to_its_success(job: Job) -> None:
    job.package(
        "torch",
        "import os\nif os.environ.pop('BROKEN', ''): raise ImportError('libcudart.so.13')\n"
        + FAKE_TORCH.format("2.6.0"),
    )
    job.environment["BROKEN"] = "1"
    done = job.python("""
try:
    import torch
except ImportError as error:
    print(error)
import torch
""")
    assert (done.stdout, done.stderr) == ("libcudart.so.13\ntorch is here\n", "")
    assert read_torch_births(job.run_dir) == 1


def test_no_torch_is_the_jobs_own_error(job: Job) -> None:
    blocked = "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]"
    done = job.python(f"{blocked}\nimport torch")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'torch'"
    assert "sitecustomize" not in done.stderr


def test_a_hook_that_raises_is_told_and_the_job_goes_on(job: Job) -> None:
    job.package("torch", FAKE_TORCH.format("2.6.0"))  # it has no `optim` to hook into
    done = job.python("import torch; print('trained')")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("trained\n")
    assert len(job.faults()) == 1


def test_an_old_torch_is_left_alone_and_that_is_told(job: Job) -> None:
    job.package("torch", FAKE_TORCH.format("2.5.1+cu118"))
    assert job.python("import torch").returncode == 0
    (fault,) = job.faults()
    assert "torch 2.5.1+cu118 is too old, the agent takes 2.6 or later" in fault


@pytest.mark.parametrize("text", [None, "", "{", '{"schema": 99, "run_dir": "x"}', "[]"])
def test_a_specification_that_cannot_be_read_is_told(text: str | None, job: Job) -> None:
    job.package("torch", FAKE_TORCH.format("2.6.0"))
    place = job.run_dir / "spec.json"
    place.unlink()
    if text is not None:
        place.write_text(text)
    done = job.python("import torch; print('trained')")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(job.faults()) == 1


def test_a_run_folder_that_is_gone_does_not_matter(job: Job) -> None:
    job.package("torch", FAKE_TORCH.format("2.6.0"))
    script = f"import shutil; shutil.rmtree({str(job.run_dir)!r}); import torch; print('trained')"
    done = job.python(script)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("trained\n")


def test_the_jobs_own_sitecustomize_runs_as_if_alone(job: Job) -> None:
    own = job.packages / "sitecustomize.py"
    own.write_text("import sys\nprint(__name__, __file__, len(sys.argv))\n")
    under = job.python("import sitecustomize; print(sitecustomize.__file__)")
    job.environment["PYTHONPATH"] = str(job.packages)
    plain = job.python("import sitecustomize; print(sitecustomize.__file__)")
    assert under.stdout == plain.stdout
    assert len(read_births(job.run_dir)) == 1


def test_a_broken_sitecustomize_is_pythons_to_report(job: Job) -> None:
    job.package("torch", FAKE_TORCH.format("2.6.0"))
    (job.packages / "sitecustomize.py").write_text("import not_there_at_all\n")
    under = job.python("import torch")
    assert "Error in sitecustomize; set PYTHONVERBOSE for traceback" in under.stderr
    assert "ModuleNotFoundError: No module named 'not_there_at_all'" in under.stderr
    assert under.returncode == 0
    assert read_torch_births(job.run_dir) == 1


def test_nothing_of_ours_but_the_package_can_be_imported(job: Job) -> None:
    script = "\n".join(
        f"try: import {name}; print({name}.__file__)\nexcept ImportError: print('no {name}')"
        for name in ("selector", "profiles", "errors", "aiak_tune")
    )
    done = job.python(script)
    lines = done.stdout.splitlines()
    assert lines[:3] == ["no selector", "no profiles", "no errors"]
    assert lines[3].endswith("aiak_tune/__init__.py")


def _other_pythons() -> list[str]:
    return sorted(map(str, (Path.home() / ".pyenv" / "versions").glob("*/bin/python")))


@pytest.mark.parametrize("executable", _other_pythons() or [None], ids=str)
def test_every_python_starts_as_it_would_without_us(executable: str | None, job: Job) -> None:
    if executable is None:
        pytest.skip("no other Python on this machine")
    show = "import sys; sys.stdout.write('%d.%d' % sys.version_info[:2])"
    done = job.python(show, executable=executable)
    assert (done.returncode, done.stderr) == (0, "")
    if int(done.stdout.split(".")[0]) < 3:
        return  # it reads no such sitecustomize: not a birth either
    assert [birth.python for birth in read_births(job.run_dir)] == [done.stdout]
