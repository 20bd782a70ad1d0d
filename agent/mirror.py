"""Where a trial's checkpoints go instead: the user's paths, again, below the run's folder.

A path has one place, in each process of the job, so what rank 0 saves rank 1 finds, and a folder
looks as the job made it. Nothing here raises: a place that cannot be made is /dev/null, for a
trial's checkpoint is nobody's loss and the user's would be.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

from aiak_tune.agent.footprints import Footprints

FOLDER = "saved"
WHOLE = "saved-folders"  # an entry for each folder that was saved as a whole
# Files that only checkpoints are: never written where the job says, in a trial.
CHECKPOINTS = (".pt", ".pth", ".ckpt", ".safetensors", ".pt2", ".pth.tar", ".pt.tar")
# Files that may be checkpoints: not over one that was there before.
PERHAPS = (".bin", ".pkl", ".pickle", ".npz", ".npy", ".h5", ".joblib", ".tar")
CACHES = ("XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME", "HF_HUB_CACHE")
MOST_COPIED_BYTES = 1 << 30  # of a file that is written on; one that is larger is data
LEAST_ROOM_BYTES = 64 << 20  # on the run's disk, for what the agent has to tell
MOST_HEADS = 4096

# The plain ones: `file_calls` puts others into `os`.
_stat, _symlink, _makedirs = os.stat, os.symlink, os.makedirs


class Mirror:
    """The places as one process sees them."""

    def __init__(self, run_dir: Path, footprints: Footprints) -> None:
        self._own = os.path.realpath(run_dir)
        self._root = os.path.join(self._own, FOLDER)
        self._whole = os.path.join(self._own, WHOLE)
        self._began = _began_s(self._own)
        self._used = False
        self._hidden: set[str] = set()  # places of what the job believes to have removed
        self._heads: dict[str, tuple[tuple[int, int], str]] = {}
        found = (os.environ.get(name) for name in CACHES)
        self._caches = tuple(os.path.join(os.path.abspath(place), "") for place in found if place)
        self.fetching = 0  # downloads that run
        self.footprints = footprints
        self.last_read: str | None = None

    @property
    def used(self) -> bool:
        """Whether any process of the job has saved something."""
        if not self._used:
            self._used = os.path.lexists(self._root)
        return self._used

    def place(self, path: Any) -> str:
        """Return the place of a path; a path in the run's folder is its own."""
        head, tail = os.path.split(os.path.abspath(os.fsdecode(path)))
        real = os.path.join(self._real(head), tail)
        return real if self._is_below(real, self._own) else self._root + real

    def _real(self, head: str) -> str:
        """Return the folder's real path; each call on a file asks, so the last answers are kept."""
        try:
            found = _stat(head)
        except OSError:
            return os.path.realpath(head)
        key = (found.st_dev, found.st_ino)
        known = self._heads.get(head)
        if known is None or known[0] != key:
            if len(self._heads) >= MOST_HEADS:
                self._heads.clear()
            known = self._heads[head] = (key, os.path.realpath(head))
        return known[1]

    def is_own(self, path: Any) -> bool:
        """Whether a path is in the run's folder."""
        return self._is_below(os.path.abspath(os.fsdecode(path)), self._own)

    def write(self, path: Any, *, folder: bool = False, told: bool = True) -> Any:
        """Return where to write instead, with the folders above made."""
        if not _is_path(path):
            return path
        try:
            place = self.place(path)
            if not self._is_below(place, self._root):
                return place
            told = told and not self.is_own(path) and not self._is_beside(path)
            room = os.statvfs(self._own)
            if not folder and room.f_bavail * room.f_frsize < LEAST_ROOM_BYTES:
                return os.devnull
            _makedirs(os.path.dirname(place), exist_ok=True)
            if os.path.islink(place):  # to a file of the user's: another one takes its place
                os.unlink(place)
            if folder:
                _makedirs(place, exist_ok=True)
                _makedirs(os.path.join(self._whole, _digest(place)), exist_ok=True)
        except (OSError, ValueError):
            return os.devnull
        if told:
            self.footprints.note("saved", os.path.abspath(os.fsdecode(path)))
        return place

    def read(self, path: Any) -> Any:
        """Return where to read: what was saved in this slice, else the job's own path."""
        if not _is_path(path) or not self.used:
            return path
        try:
            place = self.place(path)
            if not self._is_below(place, self._root):
                return path
            if not os.path.lexists(place):  # most are not: this is on the way of each file
                return place if self._hides(place) else path
            folder = self.has_folder(place)
            ours = not folder or self._hides(place) or not os.path.lexists(path)
            return place if ours or self._is_whole(place) else path
        except (OSError, ValueError):
            return path

    def loaded(self, path: Any) -> Any:
        """Do as `read`, for a checkpoint: it is remembered as the last one."""
        if _is_path(path):
            self.last_read = os.path.abspath(os.fsdecode(path))
        return self.read(path)

    def second(self, path: Any) -> str | None:
        """Return the place of a folder that is also where the job says; else None."""
        if not isinstance(path, (str, os.PathLike)) or not self.used:
            return None
        try:
            place = self.place(path)
            both = self.has_folder(place) and self.has_folder(os.fspath(path))
            return place if both and not self.is_own(path) and not self._hides(place) else None
        except (OSError, TypeError, ValueError):
            return None

    def has_folder(self, place: str) -> bool:
        """Whether there is a folder at a place."""
        try:
            return bool(_stat(place).st_mode & 0o170000 == 0o040000)
        except OSError:
            return False

    def _is_whole(self, place: str) -> bool:
        """Whether the folder, or one above it, was saved as a whole."""
        while len(place) > len(self._root):
            if os.path.lexists(os.path.join(self._whole, _digest(place))):
                return True
            place = os.path.dirname(place)
        return False

    def guards(self, path: Any, *, anew: bool = True) -> bool:
        """Whether a file that the job writes by itself is to go to its place."""
        if not _is_path(path):
            return False
        if self.is_own(path):
            return False
        if os.fsdecode(path).lower().endswith(CHECKPOINTS):
            return not self._is_download(path)
        # Written on, a file of these kinds is data that was mapped: it may be of any size.
        return (anew and self.protects(path)) or self.keeps(path)

    def _is_download(self, path: Any) -> bool:
        """Whether a new file is pretrained weights: each trial would fetch them again."""
        place = os.path.abspath(os.fsdecode(path))
        cached = self.fetching or "/.cache/" in place or place.startswith(self._caches)
        return bool(cached) and not os.path.lexists(path)

    def protects(self, path: Any) -> bool:
        """Whether this is a checkpoint of the user's, from before this start.

        Any file is that lies above or beside what was saved: `latest` says which one to load.
        """
        if not _is_path(path):
            return False
        try:
            if not self.is_older(path):
                return False
            if os.fsdecode(path).lower().endswith(CHECKPOINTS + PERHAPS):
                return True
            beside = self.used and self.has_folder(os.path.dirname(self.place(path)))
            return beside and not self.has_folder(os.fsdecode(path))
        except (OSError, ValueError):
            return False

    def is_older(self, path: Any) -> bool:
        """Whether a file was there before this start."""
        try:
            return not self.is_own(path) and _stat(path).st_ctime <= self._began
        except (OSError, ValueError):
            return False

    def hide(self, path: Any) -> None:
        """Let the job see no longer what it has removed, or moved away, and what stays."""
        self._hidden.add(self.place(path))
        self._used = True
        self.footprints.note("kept", os.path.abspath(os.fsdecode(path)))

    def hides(self, path: Any) -> bool:
        """Whether the path is hidden from the job, or below one that is."""
        return bool(self._hidden) and _is_path(path) and self._hides(self.place(path))

    def keeps(self, path: Any) -> bool:
        """Whether what is made at this path can only be made at its place."""
        return self.hides(path) or self._is_beside(path)

    def _is_beside(self, path: Any) -> bool:
        """Whether the folder of this path is among what was saved, and nowhere else."""
        if not _is_path(path) or not self.used or self.is_own(path):
            return False
        if os.path.lexists(os.path.dirname(os.path.abspath(os.fsdecode(path)))):
            return False
        return self.has_folder(os.path.dirname(self.place(path)))

    def hides_in(self, place: str, name: str) -> bool:
        """Do as `hides`, for an entry of a folder that is not hidden itself."""
        return bool(self._hidden) and os.path.join(place, name) in self._hidden

    def _hides(self, place: str) -> bool:
        while self._hidden and len(place) > len(self._root):
            if place in self._hidden:
                return True
            place = os.path.dirname(place)
        return False

    def copied(self, path: Any) -> Any:
        """Return the place of a file that is written on, not anew: with its content so far."""
        try:
            source = self.read(path)
            if source is path and os.path.lexists(path):
                if _stat(path).st_size > MOST_COPIED_BYTES:
                    self.opened(path)
                    return path
                place = self.write(path)
                if place != os.devnull:
                    shutil.copyfile(path, place)
                return place
            if os.path.islink(source):
                real = os.path.realpath(source)
                place = self.write(path)
                shutil.copyfile(real, place)
                return place
        except OSError:
            return os.devnull
        return self.write(path)

    def link(self, source: Any, target: Any) -> None:
        """Let the target's place show the user's file or folder, which stays where it is."""
        source, place = os.path.realpath(os.fsdecode(source)), self.write(target)
        try:
            if self.has_folder(source):
                # Not a link to the folder: what is written below it would be written there.
                shutil.copytree(source, place, copy_function=_symlink, dirs_exist_ok=True)
                return
            if os.path.lexists(place):
                os.unlink(place)
            _symlink(source, place)
        except (OSError, shutil.Error):
            pass

    def opened(self, path: Any, *, made: bool = False) -> None:
        """Note a file that the job writes where it says, or a folder that it has made there."""
        if _is_path(path) and not self.is_own(path):
            self.footprints.opened(os.fsdecode(path), made=made)

    @staticmethod
    def _is_below(path: str, folder: str) -> bool:
        return path == folder or path.startswith(folder + os.sep)


def _is_path(path: Any) -> bool:
    return isinstance(path, (str, bytes, os.PathLike))


def _digest(place: str) -> str:
    return hashlib.sha256(os.fsencode(place)).hexdigest()[:16]


def _began_s(run_dir: str) -> float:
    """Return when this start began: its specification was written right before."""
    try:
        return _stat(os.path.join(run_dir, "spec.json")).st_mtime
    except OSError:
        return time.time()
