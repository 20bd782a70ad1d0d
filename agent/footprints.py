"""What a trial did beside training: a line each in the run's folder, told to the user afterwards.

`side-effects.jsonl` has [what, path] rows. saved: a checkpoint that went to the run's folder
instead; kept: one of the user's that the job would have removed; wrote, changed: a file outside the
run's folder that was new, or was there before; resumed: optimizer state was loaded before the first
step, from that file where it is known; tracker: one that was turned away from its server or folder.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

PLACE = "side-effects.jsonl"
KINDS = ("saved", "kept", "wrote", "changed", "resumed", "tracker")
MOST = 100  # rows of a kind and process: a job that makes a file a sample must not fill the folder
_SYSTEM = ("/dev/", "/proc/", "/sys/")
_CACHES = ("/.cache/", "/__pycache__/", "/.triton/", "/.config/", "/.nv/", "/torchinductor_")


class Footprints:
    """Writes the rows of one process, each once."""

    def __init__(self, run_dir: Path) -> None:
        self._place = str(run_dir / PLACE)
        self._told: set[tuple[str, str]] = set()
        self._counts = dict.fromkeys(KINDS, 0)
        self._temporary = f"{os.path.realpath(tempfile.gettempdir())}{os.sep}"

    def note(self, what: str, path: str = "") -> None:
        """Add a row; a full disk is no reason to disturb the job."""
        row = (what, path)
        if row in self._told or self._counts[what] >= MOST:
            return
        self._told.add(row)
        self._counts[what] += 1
        try:
            handle = os.open(self._place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(handle, (json.dumps(row) + "\n").encode())
            finally:
                os.close(handle)
        except (OSError, ValueError):
            pass

    def opened(self, path: str, *, made: bool) -> None:
        """Note a file that is about to be written where the job says, or a folder made there."""
        if self._counts["changed"] >= MOST or self._counts["wrote"] >= MOST:
            return
        try:
            place = os.path.realpath(path)
            temporary = place.startswith(self._temporary) and not place.startswith(os.getcwd())
            if temporary or place.startswith(_SYSTEM) or any(word in place for word in _CACHES):
                return
            there = os.path.lexists(place) and not made
        except (OSError, ValueError):
            return
        self.note("changed" if there else "wrote", place + os.sep if made else place)


def read_footprints(run_dir: Path) -> dict[str, list[str]]:
    """Return the paths by what was done, each once, in order.

    A file that was new once is no changed one, however often it was opened.
    """
    found: dict[str, list[str]] = {}
    try:
        lines = (run_dir / PLACE).read_text(errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            what, path = json.loads(line)
        except ValueError:  # a full disk took a part of it
            continue
        known = found.setdefault(what, [])
        again = what == "changed" and path in found.get("wrote", ())
        if path not in known and not again and what in KINDS:
            known.append(path)
    return {what: paths for what, paths in found.items() if paths and what in KINDS}
