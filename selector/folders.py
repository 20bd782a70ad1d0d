"""Where the tool keeps what it makes: the user's data folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from aiak_tune.errors import JobError


def data_folder() -> Path:
    """Return `$XDG_DATA_HOME/aiak-tune`, or the one in `~/.local/share`."""
    data = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if Path(data).is_absolute() else Path.home() / ".local" / "share"
    return base / "aiak-tune"


def made(folder: Path) -> Path:
    """Make the folder where it is missing.

    Raises:
        JobError: it cannot be made, with the folder and what to do.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JobError(
            f"the folder {folder} cannot be made ({error.strerror}): free some space or set "
            "XDG_DATA_HOME to a folder that can be written"
        ) from error
    return folder


class RunFolders:
    """Folders for starts below one place.

    Each is locked while this process lives, however it ends: what a killed one left is removed
    when the next begins. Folders that are to be kept have another name.
    """

    PREFIX = "aiak-run-"

    def __init__(self, place: Path, *, keep: bool = False) -> None:
        self._place, self._keep = place, keep
        self._locks: dict[Path, int] = {}
        for folder in place.glob(f"{self.PREFIX}*"):
            lock = _locked(folder)
            if lock is not None:
                with suppress(OSError):
                    shutil.rmtree(folder)
                os.close(lock)

    def new(self) -> Path:
        """Make a folder.

        Raises:
            JobError: it cannot be made, with the place and what to do.
        """
        try:
            if self._keep:
                return Path(tempfile.mkdtemp(prefix="kept-", dir=self._place))
            unlocked = Path(tempfile.mkdtemp(prefix="new-", dir=self._place))
            lock = _locked(unlocked)
            folder = unlocked.rename(unlocked.with_name(self.PREFIX + unlocked.name[4:]))
        except OSError as error:
            raise JobError(
                f"no run folder can be made in {self._place} ({error.strerror}): free some "
                "space, or set XDG_DATA_HOME to another disk"
            ) from error
        if lock is not None:
            self._locks[folder] = lock
        return folder

    def remove(self, folder: Path) -> None:
        """Remove a folder and all in it, where they are not to be kept."""
        if self._keep:
            return
        with suppress(OSError):
            shutil.rmtree(folder)
        lock = self._locks.pop(folder, None)
        if lock is not None:
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """Lock the folder; None where a living process has it, or its file system has no locks."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
