"""The ways in which people start a training: each is measured, and nothing of it stays."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from running import JOBS, QUICK, start

from aiak_tune.selector.diagnosis import diagnose
from aiak_tune.selector.measure import samples_per_step

SMALL = str(JOBS / "small.py")
# Parents of the real trainer: they have torch, too.
CHILD = f"""
import subprocess, sys, torch
torch.zeros(1)
sys.exit(subprocess.run([sys.executable, {SMALL!r}]).returncode)
"""
BY_MULTIPROCESSING = """
import multiprocessing, sys, torch
import small
if __name__ == "__main__":
    sys.argv[1:] = sys.argv[2:]
    child = multiprocessing.get_context({how!r}).Process(target=small.main)
    child.start()
    child.join()
    print("the trainer ended with", child.exitcode)
    sys.exit(child.exitcode)
"""


def command(how: str, folder: Path, *words: str) -> list[str]:
    """The command that starts the small job in this way."""
    script = folder / "started"
    if how == "module":
        return [sys.executable, "-m", "small", *words]
    if how == "console":
        script.write_text(f"#!{sys.executable}\nimport small\nsmall.main()\n")
    elif how == "bash":
        line = f"export OMP_NUM_THREADS=1; cd {folder}; {sys.executable} -u {SMALL} $@"
        script.write_text(f"#!/bin/bash\nset -e\n{line}\n")
    elif how == "child":
        script.write_text(f"#!{sys.executable}\n{CHILD}")
    else:
        # spawn imports the main script again: it needs a name that can be imported.
        script = folder / "started.py"
        text = BY_MULTIPROCESSING.format(how=how)
        script.write_text(f"#!{sys.executable}\n{text}")
    script.chmod(0o755)
    return [str(script), *words]


@pytest.fixture(autouse=True)
def _job_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(JOBS))


@pytest.mark.parametrize("how", ["module", "console", "bash", "child", "spawn", "fork"])
def test_the_trainer_is_found_however_it_is_started(how: str, tmp_path: Path) -> None:
    outcome = start(command(how, tmp_path), tmp_path / "run")
    assert diagnose(outcome) is None, outcome.tail
    (record,) = outcome.results
    assert record.status == "complete" and record.window is not None
    assert len(record.window.steps) == QUICK.steps and samples_per_step(record) == 8
    assert record.facts["model"]["class"] == "Sequential"


def test_a_forked_trainer_that_ends_early_leaves_what_there_is(tmp_path: Path) -> None:
    words = command("fork", tmp_path, "ignored", "--steps", "7")
    outcome = start(words, tmp_path / "run")
    (record,) = outcome.results
    assert record.status == "short" and record.window is not None
    assert len(record.window.steps) == 3
    assert "the trainer ended with 0" in outcome.tail
