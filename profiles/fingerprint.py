"""The two fingerprints: what makes two jobs the same. Standard library only.

`job1:` is known before anything runs. It changes with the arguments, their order, the program and
the bytes of the entry script. It stays when the same script is started by another interpreter
path or Python version, from another folder, from a copy in another folder, or with other
secrets. Modules that the script imports and files that it reads do not change it.

`model1:` is known after a slice. It changes with the module tree (names, classes, parameter
shapes, order), the optimizer's class and the batch's shapes. It stays over values of
weights, learning rates, dtypes, devices, loader settings and the environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*t?\Z")
_ASSIGNMENT = re.compile(r"[-+]{0,2}[A-Za-z_][\w.-]*=")
_HEX_DIGITS = 32


def job_fingerprint(command: Sequence[str], cwd: Path) -> str:
    """Return the fingerprint of a command started in `cwd`.

    Args:
        command: the job's command, its secrets already replaced by the caller; with them in it,
            a renewed token would make a new job.
        cwd: the folder it is started in, where relative paths begin.
    """
    script = _entry_script(command, cwd)
    project = cwd if script is None else script.parent
    words = [_without_folders(word, cwd, project) for word in command]
    if command and _INTERPRETER.match(os.path.basename(command[0])):
        del words[0]  # `python3.12 train.py`, `.venv/bin/python train.py` and `./train.py`
    return f"job1:{_digest([words, _content(script)])}"


def model_fingerprint(
    structure: Iterable[tuple[str, str, tuple[int, ...]]],
    optimizer: str,
    batch_shapes: Iterable[Sequence[int]],
) -> str:
    """Return the fingerprint of what is trained.

    Args:
        structure: (qualified name, class name, shape) for each module and parameter, in the order
            of the tree of the job's own root module, without wrappers (DDP, compile); a module
            that has no parameter of its own has the shape ().
        optimizer: the class name of the optimizer.
        batch_shapes: the shape of each tensor of the first full batch, in order.
    """
    tree = [[name, cls, list(shape)] for name, cls, shape in structure]
    return f"model1:{_digest([tree, optimizer, [list(shape) for shape in batch_shapes]])}"


def _digest(value: object) -> str:
    """Hash by way of JSON: `["a b"]` and `["a", "b"]` differ, as joined text they would not."""
    text = json.dumps(value, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_HEX_DIGITS]


def _content(script: Path | None) -> str | None:
    """Return the hash of the script's bytes; one that cannot be read counts as none."""
    if script is None:
        return None
    try:
        return hashlib.sha256(script.read_bytes()).hexdigest()
    except OSError:
        return None


def _entry_script(command: Sequence[str], cwd: Path) -> Path | None:
    """Return the first argument that is a .py file, or the file of `-m name` found in `cwd`."""
    for before, word in zip(["", *command], command, strict=False):
        found = _module_file(word, cwd) if before in ("-m", "--module") else None
        if found is None and word.endswith(".py") and _is_file(cwd / word):
            found = cwd / word
        if found is not None:
            return Path(os.path.normpath(cwd / found))
    return None


def _module_file(name: str, cwd: Path) -> Path | None:
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    base = cwd.joinpath(*name.split("."))
    candidates = (base.with_suffix(".py"), base / "__main__.py")
    return next((path for path in candidates if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a NUL or a name too long: an argument, no file
        return False


def _without_folders(word: str, cwd: Path, project: Path) -> str:
    """Cut off the folders that depend on where the job lies, in the word or after its `=`.

    Inside the entry script's folder the path from there stays, since `exp/a.yaml` and
    `exp/b.yaml` are two jobs. An absolute path elsewhere keeps its name. A relative one
    elsewhere stays as written: it may be a model's name, `facebook/opt-125m`.
    """
    assignment = _ASSIGNMENT.match(word)
    head = assignment[0] if assignment else ""
    path = word[len(head) :]
    if "/" not in path or "://" in path or not path.strip("/"):
        return word
    full = os.path.normpath(os.path.join(cwd, path))
    inside = os.path.relpath(full, project)
    if not inside.startswith(".."):
        return f"{head}{inside}"
    return f"{head}{os.path.basename(full)}" if path.startswith("/") else word
