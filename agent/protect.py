"""Keeps a trial's checkpoints away from the user's: torch.save to a path goes to the run's folder.

A trial runs the job's own code where the user started it, and must not overwrite what lies there.
What was saved so is read back by torch.load under the name that the job gave it. Files that the
job opens itself, and other libraries' writers, are not seen.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from aiak_tune.agent.hooks import patch

FOLDER = "saved"


def redirect_saves(torch: Any, run_dir: Path) -> None:
    """Send torch.save's paths to `run_dir/saved` from now on."""
    plain_save, plain_load = torch.save, torch.load
    moved: dict[str, str] = {}

    def own_place(path: str) -> str:
        folder = run_dir / FOLDER
        try:
            folder.mkdir(exist_ok=True)
        except OSError:  # no room: a trial's checkpoint is nobody's loss, the user's would be
            return os.devnull
        return moved.setdefault(path, str(folder / f"{len(moved)}-{os.path.basename(path)}"))

    @functools.wraps(plain_save)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)):
            f = own_place(os.path.abspath(os.fspath(f)))
        return plain_save(obj, f, *args, **kwargs)

    @functools.wraps(plain_load)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        if moved and isinstance(f, (str, os.PathLike)):
            f = moved.get(os.path.abspath(os.fspath(f)), f)
        return plain_load(f, *args, **kwargs)

    for owner in (torch, torch.serialization):
        patch(owner, "save", save)
        patch(owner, "load", load)
