"""The job's own interpreter: which one it is, and what it and its torch tell of the machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from aiak_tune.errors import JobError, UsageError
from aiak_tune.profiles.hardware import gpus, host_facts
from aiak_tune.profiles.workload import Environment
from aiak_tune.selector.diagnosis import last_line
from aiak_tune.selector.job_name import unwrapped

PATIENCE_S = 120.0  # an import of torch from a cold network disk takes its time
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?\Z")
_NAME_IT = "name it with --python PATH"
# Runs in the job's interpreter, whatever its version: no annotations, nothing of ours but by place.
_ASK = """
import json, sys
told = {"executable": sys.executable, "python": "%d.%d.%d" % sys.version_info[:3]}
try:
    import torch
except Exception as error:
    told["torch_problem"] = "%s: %s" % (type(error).__name__, error)
else:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    spec = PathFinder.find_spec("aiak_tune", [sys.argv[1]])
    sys.modules["aiak_tune"] = package = module_from_spec(spec)
    spec.loader.exec_module(package)
    try:
        from aiak_tune.agent.facts import environment_facts
        told["facts"] = environment_facts(torch)
        if torch.version.cuda and not torch.cuda.is_available():
            try:
                torch.cuda.init()
            except Exception as error:
                told["cuda_problem"] = str(error).split("\\n")[0]
    except Exception as error:
        told["facts"] = {"torch": torch.__version__, "python": told["python"]}
        told["facts_problem"] = "%s: %s" % (type(error).__name__, error)
print("\\n" + json.dumps(told))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """What the job's interpreter told; a problem is None where there is none."""

    executable: str
    environment: Environment
    torch_problem: str | None = None
    cuda_problem: str | None = None
    facts_problem: str | None = None


def interpreter_of(command: Sequence[str]) -> str:
    """Return the interpreter that a training command starts; without one what `python` is.

    Raises:
        UsageError: it cannot be told, or is not there.
    """
    if not command:
        found = shutil.which("python") or shutil.which("python3")
        if found is None:
            raise UsageError(f"there is no python on PATH: {_NAME_IT}")
        return found
    program = unwrapped(command)[0]
    place = shutil.which(program)
    if place is None:
        raise UsageError(f"{program!r} is no program that can be run here: is the path right?")
    if _PYTHON.match(os.path.basename(program)):
        return place
    return _from_first_line(Path(place))


def _from_first_line(script: Path) -> str:
    """Return the interpreter that `#!` names in torchrun, trl, yolo and their like."""
    with open(script, "rb") as file:
        line = file.readline(1024).decode(errors="replace")
    # pip writes two lines of sh where the interpreter's path is too long for `#!`.
    words = line[2:].split() if line.startswith("#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [w for w in words[1:] if not w.startswith("-")]
    found = shutil.which(words[0]) if words else None
    if found is None or not _PYTHON.match(os.path.basename(words[0])):
        raise UsageError(f"which Python {str(script)!r} starts cannot be told: {_NAME_IT}")
    return found


def ask(python: str) -> Interpreter:
    """Start the interpreter, let it import torch, and return what it tells.

    Raises:
        UsageError: there is no such program.
        JobError: it does not answer as a Python does.
    """
    place = shutil.which(python)
    if place is None:
        raise UsageError(f"{python!r} is no program that can be run here: is the path right?")
    root = str(Path(sys.modules["aiak_tune"].__path__[0]).parent)
    try:
        done = subprocess.run(
            [place, "-c", _ASK, root], capture_output=True, text=True, errors="replace",
            timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise JobError(f"{python} did not import torch within {PATIENCE_S:.0f} s") from error
    except OSError as error:
        raise JobError(f"{python} cannot be started: {error.strerror}") from error
    try:
        told = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        why = last_line(done.stderr) or f"it ended with exit code {done.returncode}"
        raise JobError(f"{python} does not answer as a Python does: {why}") from error
    return _interpreter(told)


def _interpreter(told: dict[str, Any]) -> Interpreter:
    names = {field.name for field in fields(Environment)}
    facts = {k: v for k, v in told.get("facts", {}).items() if k in names}
    if facts.get("compute_capability"):
        facts["compute_capability"] = tuple(facts["compute_capability"])
    here = {**host_facts(), **gpus(), "python": told["python"]}
    if facts.get("gpu") is None:  # torch sees none; the driver may
        facts.pop("gpu", None)
        facts.pop("gpu_count", None)
    return Interpreter(
        executable=told["executable"] or "?",
        environment=Environment(**{**here, **facts}),
        torch_problem=told.get("torch_problem"),
        cuda_problem=told.get("cuda_problem"),
        facts_problem=told.get("facts_problem"),
    )
