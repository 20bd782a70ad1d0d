"""Says what a start of the job did beside training, so that nobody finds it by surprise."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from aiak_tune.agent.footprints import read_footprints
from aiak_tune.agent.trackers import TRACKERS
from aiak_tune.profiles.workload import Warn
from aiak_tune.selector.folders import data_folder
from aiak_tune.selector.workdir import FOLDER

SHOWN = 5
LOOKED_AT = 5000  # entries of the job's folder: some 20 ms
EVENTS = "its events go to the start's folder"


def side_effects(run_dir: Path) -> list[Warn]:
    """Return a warning for each kind of side effect that the agent noted in this start."""
    found = read_footprints(run_dir)
    told = []
    if saved := found.get("saved"):
        text = (
            f"checkpoints were not written where the job says ({_paths(saved)}), but to the "
            "start's own folder, which is removed"
        )
        told.append(Warn(code="saves_redirected", text=text))
    if kept := found.get("kept"):
        text = f"the job would have removed or moved {_paths(kept)}: left as it was"
        told.append(Warn(code="checkpoints_kept", text=text))
    if used := found.get("tracker"):
        how = {tracker.name: tracker.how for tracker in TRACKERS}
        names = [f"{name} ({how.get(name, EVENTS)})" for name in used]
        text = f"the job's trackers were switched off: {', '.join(names)}"
        told.append(Warn(code="trackers_off", text=text))
    if "resumed" in found:
        copy = f"{os.path.realpath(run_dir / FOLDER)}{os.sep}"
        paths = [path.removeprefix(copy) for path in found["resumed"] if path]
        source = _paths(paths) or "an earlier run's state"
        text = (
            f"the job resumes from {source}: each start goes on from there, with the learning rate "
            "and the place in the data of that time"
        )
        told.append(Warn(code="resumed", text=text))
    if written := files_left(run_dir):
        text = (
            f"the job wrote {_paths(written)} in its first steps; look whether they are to stay "
            "(--workdir-copy lets it run in a copy of this folder)"
        )
        told.append(Warn(code="files_written", text=text))
    return told


def later_files(starts: Sequence[Sequence[str]]) -> list[Warn]:
    """Return a warning of the files that later starts left and the first did not: its is given."""
    first = set(starts[0]) if starts else set()
    later = list(dict.fromkeys(path for left in starts for path in left if path not in first))
    if not later:
        return []
    text = f"other starts of the job left {_paths(later)}: look whether they are to stay"
    return [Warn(code="files_left", text=text)]


def files_left(run_dir: Path) -> list[str]:
    """Return what a start left where the job says: folders it made stand for what is in them."""
    found = read_footprints(run_dir)
    try:
        began = os.stat(run_dir / "spec.json").st_mtime
    except OSError:
        return []
    made = [path for path in found.get("wrote", ()) if path.endswith(os.sep)]
    noted = dict.fromkeys((*found.get("wrote", ()), *found.get("changed", ())))
    left = []
    for path in (*noted, *(p for p in _changed_since(began, run_dir) if p not in noted)):
        inside = any(path != folder and path.startswith(folder) for folder in made)
        try:
            if not inside and os.stat(path).st_mtime >= began:
                left.append(path)
        except (OSError, ValueError):
            continue
    return left


def _changed_since(began: float, run_dir: Path) -> Iterator[str]:
    """Look at the first entries below the current folder, nearest first, for files of this start.

    The agent notes what Python opens; other programs and compiled code write without it.
    """
    own = {os.path.realpath(place) for place in (run_dir.parent, data_folder())}
    folders, looked = deque([os.path.realpath(os.getcwd())]), 0
    outputs = {_identity(handle) for handle in (1, 2)}  # ours may be a file here
    while folders:
        try:
            entries = os.scandir(folders.popleft())
        except OSError:
            continue
        with entries:
            for entry in entries:
                looked += 1
                if looked > LOOKED_AT:
                    return
                if entry.is_dir(follow_symlinks=False):
                    if entry.name[0] != "." and entry.name != "__pycache__":
                        folders.extend({entry.path} - own)
                elif entry.is_file(follow_symlinks=False):
                    state = entry.stat(follow_symlinks=False)
                    if state.st_mtime >= began and (state.st_dev, state.st_ino) not in outputs:
                        yield entry.path


def _identity(handle: int) -> tuple[int, int]:
    try:
        state = os.fstat(handle)
    except OSError:
        return (0, 0)
    return (state.st_dev, state.st_ino)


def _paths(paths: Sequence[str]) -> str:
    """Name the first few, from here where they are below."""
    here = f"{os.path.realpath(os.getcwd())}{os.sep}"
    names = [path.removeprefix(here) for path in paths[:SHOWN]]
    more = len(paths) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
