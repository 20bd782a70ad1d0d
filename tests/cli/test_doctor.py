"""`doctor` says what is missing and what it would bring; `env` where a job would run."""

import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from contracts.example_tuning import example_tuning

from aiak_tune.cli import main
from aiak_tune.selector.plan import dump_plan, plan_of


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIAK_TUNE_STORE", f"sqlite:///{tmp_path / 'tunings.db'}")
    monkeypatch.setenv("COLUMNS", "100")


def without_torch(folder: Path) -> str:
    """An interpreter that finds no torch."""
    place = folder / "python3"
    place.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    place.chmod(place.stat().st_mode | stat.S_IXUSR)
    return str(place)


def test_a_lack_is_told_with_its_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [without_torch(tmp_path), "train.py"]
    assert main.main(["doctor", "--storage", str(tmp_path), "--json", "-", "--", *command]) == 1
    told = json.loads(capsys.readouterr().out)
    (torch_check,) = (check for check in told["checks"] if check["name"] == "torch")
    assert (
        torch_check["state"] == "missing" and "aiak-tune doctor -- python" in torch_check["remedy"]
    )
    assert main.main(["doctor", "--storage", str(tmp_path), "--", *command]) == 1
    assert "missing: each line says what it would bring." in capsys.readouterr().out


def test_this_environment_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", "--python", sys.executable, "--storage", str(tmp_path), "--json", "-"]
    main.main(words)
    told = json.loads(capsys.readouterr().out)
    checks = {check["name"]: check for check in told["checks"]}
    assert {"cpu", "gpu", "/dev/shm", "storage", "python", "torch", "open files"} <= set(checks)
    assert checks["torch"]["found"] == torch.__version__ and checks["torch"]["state"] == "ok"
    assert all(check["remedy"] for check in checks.values() if check["state"] != "ok")
    assert told["storage"]["bytes_per_s"] > 0 and list(tmp_path.iterdir()) == []


def test_env_tells_of_the_commands_interpreter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "trl"  # a console script
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    assert main.main(["env", "--json", "-", "--", str(script), "sft"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "environment" and told["torch"] == torch.__version__
    assert told["interpreter"] == sys.executable and told["cores"] == len(os.sched_getaffinity(0))
    assert main.main(["env", "--", str(script)]) == 0
    assert f"torch                  {torch.__version__}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--python", "/nowhere/python"], "no program that can be run here"),
        (["--", "/nowhere/python", "x.py"], "no program that can be run here"),
        (["--", "/bin/ls"], "name it with --python PATH"),
        (["--python", "/bin/true"], "does not answer as a Python does"),
        (["nobodys.json"], "nobodys.json"),
    ],
)
def test_env_names_what_it_cannot_read(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["env", *words]) in (1, 2)
    assert said in capsys.readouterr().err


def plan_with(tmp_path: Path, settings: dict[str, Any]) -> Path:
    plan = plan_of(example_tuning(confirmation=()))
    assert plan is not None
    place = tmp_path / "plan.json"
    place.write_text(dump_plan(replace(plan, settings=settings)))
    return place


def test_a_plan_without_variables_is_a_prefix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = plan_with(tmp_path, {"fused-optimizer": {}})
    assert main.main(["env", str(place), "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["variables"] == {}
    assert told["prefix"] == ["aiak-tune", "run", "--plan", str(place), "--"]
    assert main.main(["env", str(plan_with(tmp_path, {}))]) == 0
    assert "runs as written" in capsys.readouterr().out


def test_doctor_wants_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor", "--storage", str(tmp_path / "none")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
