"""Where the tool keeps what it makes: the user's data folder."""

from __future__ import annotations

import os
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
