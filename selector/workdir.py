"""A copy of the job's folder for each start, where the job would leave more than checkpoints.

Small folders only: a start that copies for minutes is no trial. Links stay links, so data that is
linked from elsewhere is not copied; a virtual environment is linked too. What the command names by
an absolute path below the folder is named in the copy.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiak_tune.errors import JobError, UsageError

FOLDER = "workdir"  # below the run's folder
MOST_FILES = 20_000
MOST_BYTES = 2 << 30
SPARE_BYTES = 256 << 20  # of the disk, for what the job writes
LIMITS = f"{MOST_FILES} files and {MOST_BYTES >> 30} GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workdir:
    """A folder that is small enough to be copied; `without` is left out of it: our own folder."""

    source: str
    files: int
    size_bytes: int
    without: str

    @property
    def text(self) -> str:
        """What each start copies, in words."""
        files = "1 file" if self.files == 1 else f"{self.files} files"
        return f"each start runs in a copy of {self.source}: {files}, {_gib(self)}"


def workdir(folder: Path, without: Path) -> Workdir:
    """Look at what is to be copied.

    Raises:
        UsageError: it is more than a start may copy; the largest part of it is named.
    """
    source, ours = os.path.realpath(folder), os.path.realpath(without)
    files: Counter[str] = Counter()  # by the part of the folder that they are in
    sizes: Counter[str] = Counter()
    for entry in _entries(source, ours):
        if entry.is_dir(follow_symlinks=False) and not _is_environment(entry.path):
            continue
        part = os.path.relpath(entry.path, source).split(os.sep)[0]
        files[part] += 1
        if entry.is_file(follow_symlinks=False):
            sizes[part] += entry.stat(follow_symlinks=False).st_size
        for counted, most in ((files, MOST_FILES), (sizes, MOST_BYTES)):
            if counted.total() > most:
                raise UsageError(
                    f"--workdir-copy: {source} has more than {LIMITS} (look at "
                    f"{counted.most_common(1)[0][0]}), the most that each start copies; start from "
                    "a smaller folder, or move data out and link to it"
                )
    return Workdir(source=source, files=files.total(), size_bytes=sizes.total(), without=ours)


def copy_workdir(workdir: Workdir, run_dir: Path) -> Path:
    """Copy the folder below the run's folder, and return the copy.

    Raises:
        JobError: no room, or something in it cannot be read.
    """
    target = os.path.join(os.path.realpath(run_dir), FOLDER)
    free = shutil.disk_usage(run_dir).free
    if free < workdir.size_bytes + SPARE_BYTES:
        raise JobError(
            f"a copy of {workdir.source} takes {_gib(workdir)} and {run_dir} has "
            f"{free / 2**30:.1f} GiB free; free some space, or set XDG_DATA_HOME to another disk"
        )
    os.mkdir(target)
    for entry in _entries(workdir.source, workdir.without):
        place = os.path.join(target, os.path.relpath(entry.path, workdir.source))
        try:
            _copy(entry, place, workdir.source, target)
        except FileNotFoundError:  # gone since it was listed
            continue
        except OSError as error:
            raise JobError(f"{entry.path} cannot be copied for a start: {error}") from error
    return Path(target)


def in_copy(command: Sequence[str], workdir: Workdir, copy: Path) -> tuple[str, ...]:
    """Return the command with the folder's absolute paths in the copy."""
    source, found = workdir.source, []
    for word in command:
        option, equals, value = word.rpartition("=")
        if value == source or value.startswith(source + os.sep):
            word = f"{option}{equals}{copy}{value[len(source) :]}"
        found.append(word)
    return tuple(found)


def _entries(folder: str, without: str) -> Iterator[os.DirEntry[str]]:
    """Walk a folder, each folder before what is in it; environments are not walked into."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        raise JobError(f"{folder} cannot be copied for a start: {error}") from error
    for entry in entries:
        if entry.path == without:
            continue
        yield entry
        if entry.is_dir(follow_symlinks=False) and not _is_environment(entry.path):
            yield from _entries(entry.path, without)


def _copy(entry: os.DirEntry[str], place: str, source: str, target: str) -> None:
    if entry.is_symlink():
        os.symlink(_same_link(entry.path, source, target), place)
    elif entry.is_dir():
        if _is_environment(entry.path):
            os.symlink(entry.path, place)
        else:
            os.mkdir(place, stat.S_IMODE(entry.stat().st_mode) | stat.S_IRWXU)
    elif entry.is_file():
        shutil.copy2(entry.path, place)


def _same_link(path: str, source: str, target: str) -> str:
    """Return what the link in the copy points to: inside to the copy, outside to the same."""
    text = os.readlink(path)
    pointed = os.path.normpath(os.path.join(os.path.dirname(path), text))
    if pointed == source or pointed.startswith(source + os.sep):
        return text if not os.path.isabs(text) else target + pointed[len(source) :]
    return pointed


def _is_environment(path: str) -> bool:
    return os.path.exists(os.path.join(path, "pyvenv.cfg"))


def _gib(workdir: Workdir) -> str:
    size = workdir.size_bytes
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 29 else f"{size / 2**20:.0f} MiB"
