"""Files that verbs write: whole or not at all, and refused before the work where they cannot be."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiak_tune.errors import UsageError


def write_json(document: Mapping[str, Any], target: str | Path) -> None:
    """Write a document to a file, whole or not at all, or to stdout for `-`.

    Raises:
        UsageError: the file cannot be written.
    """
    text = json.dumps(_finite(document), indent=1, allow_nan=False) + "\n"
    if str(target) == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    write_whole(Path(target), text)


def write_whole(target: Path, text: str) -> None:
    """Write a file, or leave what was there.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        if target.exists() and not target.is_file():
            target.write_text(text)  # /dev/null, a pipe: there is nothing to put in its place
        else:
            _replace(target, text)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}; name another file") from error


def check_targets(*targets: str | Path | None) -> None:
    """Refuse, before a long run, files that could not be written after it.

    Raises:
        UsageError: a folder is not there or may not be written to, or a file is a folder.
    """
    for target in targets:
        if target is None or str(target) == "-":
            continue
        why = _obstacle(Path(target))
        if why is not None:
            raise UsageError(f"cannot write {target}: {why}; name another file")


def _obstacle(target: Path) -> str | None:
    folder = target.parent
    if target.is_dir():
        return "it is a folder"
    if not folder.is_dir():
        return f"there is no folder {folder}"
    # A file is replaced by a new one, so its folder is what counts.
    if not os.access(folder if target.is_file() or not target.exists() else target, os.W_OK):
        return "it may not be written to"
    return None


def _replace(target: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # mkstemp's 0600 is not what a user's own file has
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _finite(value: Any) -> Any:
    """Replace what JSON has no number for by null, the documents' word for not measured."""
    if isinstance(value, Mapping):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
