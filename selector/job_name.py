"""What people call a job, read from its command: the script, the module, the command's task."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*t?\Z")
_SHELLS = frozenset({"ash", "bash", "dash", "ksh", "sh", "zsh"})
_SCRIPT = (".py", ".sh", ".bash")
# They start another program, which is the job: by module name, then by command.
_LAUNCHER_MODULES = frozenset(
    "accelerate accelerate.commands.launch coverage deepspeed deepspeed.launcher.runner kernprof "
    "torch.distributed.launch torch.distributed.run torchrun".split()
)
_WRAPPERS = frozenset(
    "chrt env ionice nice nohup numactl setsid stdbuf taskset time timeout".split()
)
_RUNNERS = frozenset("conda hatch pdm pipenv pixi poetry rye uv".split())  # `uv run COMMAND`
# The interpreter's options that take the next word.
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_TASK = re.compile(r"[A-Za-z][\w-]*\Z")
_AMOUNT = re.compile(r"[\d.]+[smhdx]?\Z")  # `timeout 10m`, `nice 5`
_MOST_TASKS = 2  # `yolo detect train`
_LONGEST = 60


def job_name(command: Sequence[str]) -> str:
    """Return `train.py`, `pkg.train` (of `-m`), `trl sft`, `yolo detect train`.

    Args:
        command: a word each, secrets replaced.
    """
    words = unwrapped(command)
    script = _in_shell(words) or _script(words)
    if script is not None:
        return script[:_LONGEST]
    program = os.path.basename(words[0])
    if _INTERPRETER.match(program):
        return _of_interpreter(program, words[1:])[:_LONGEST]
    tasks = []
    for word in words[1 : 1 + _MOST_TASKS]:
        if not _TASK.match(word):
            break
        tasks.append(word)
    return " ".join([program, *tasks])[:_LONGEST]


def unwrapped(command: Sequence[str]) -> list[str]:
    """Return the command without `env A=1`, `nice -n 5`, `uv run` before it."""
    words = list(command)
    while len(words) > 1:
        program = os.path.basename(words[0])
        rest = words[1:]
        if program in _RUNNERS and rest[0] == "run":
            rest = rest[1:]
        elif program not in _WRAPPERS and "=" not in program:
            break
        while rest and (rest[0][:1] == "-" or "=" in rest[0] or _AMOUNT.match(rest[0])):
            rest = rest[1:]
        if not rest:
            break
        words = rest
    return words


def _in_shell(words: Sequence[str]) -> str | None:
    """Return the name of what `sh -c "cd x && python train.py"` starts, where it is a script."""
    if os.path.basename(words[0]) not in _SHELLS:
        return None
    for option, text in zip(words[1:], words[2:], strict=False):
        if re.fullmatch(r"-[a-z]*c", option):
            try:
                return _script(shlex.split(text)) or f"{os.path.basename(words[0])} -c"
            except ValueError:  # a quote that does not end
                return f"{os.path.basename(words[0])} -c"
    return None


def _script(words: Sequence[str]) -> str | None:
    """Return the first script's name, or the module of the first `-m` that is no launcher."""
    for before, word in zip(["", *words], words, strict=False):
        if before in ("-m", "--module"):
            if word not in _LAUNCHER_MODULES and "=" not in word:
                return word
        elif word.endswith(_SCRIPT) and word[:1] != "-" and "=" not in word:
            return os.path.basename(word)
    return None


def _of_interpreter(program: str, words: Sequence[str]) -> str:
    """Return the script of `python -u train`, or `python -c`."""
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == "-c":
            return f"{program} -c"
        elif word in _WITH_VALUE:
            skip = True
        elif word[:1] != "-":
            return os.path.basename(word.rstrip("/")) or program
    return program
