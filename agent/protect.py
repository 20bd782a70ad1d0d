"""Keeps a trial's checkpoints away from the user's: what is saved goes to the run's folder.

A trial runs the job's own code where the user started it, and must not overwrite what lies there.
What was saved is read back under the name that the job gave it. Other files that the job writes,
it writes; they are noted. docs/decisions/0010-side-effects-in-trials.md
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiak_tune.agent.file_calls import redirect_file_calls
from aiak_tune.agent.file_moves import redirect_moves
from aiak_tune.agent.footprints import Footprints
from aiak_tune.agent.guest import guest
from aiak_tune.agent.hooks import patch
from aiak_tune.agent.imports import when_imported
from aiak_tune.agent.libraries import redirect_libraries, turn
from aiak_tune.agent.mirror import Mirror
from aiak_tune.agent.trackers import quiet_trackers


def redirect_saves(torch: Any, run_dir: Path) -> Mirror:
    """Send checkpoints to `run_dir/saved` from now on, and note what else is written."""
    mirror = Mirror(run_dir, Footprints(run_dir))
    for owner in (torch, torch.serialization):
        turn(owner, "save", 1, "f", mirror.write)
        turn(owner, "load", 0, "f", mirror.loaded)
    turn(torch.jit, "save", 1, "f", mirror.write)
    turn(torch.jit, "load", 0, "f", mirror.loaded)
    _let_download(torch, mirror)
    when_imported("torch.jit._script", lambda m: _script(mirror, m))
    when_imported("torch.export", lambda m: _export(mirror, m))
    redirect_file_calls(mirror)
    redirect_moves(mirror)
    redirect_libraries(mirror)
    quiet_trackers(mirror, run_dir)
    return mirror


def _let_download(torch: Any, mirror: Mirror) -> None:
    plain = torch.hub.download_url_to_file

    @functools.wraps(plain)
    def download_url_to_file(*args: Any, **kwargs: Any) -> Any:
        mirror.fetching += 1
        try:
            return plain(*args, **kwargs)
        finally:
            mirror.fetching -= 1

    patch(torch.hub, "download_url_to_file", download_url_to_file)


def _script(mirror: Mirror, module: Any) -> None:
    turn(getattr(module, "RecursiveScriptModule", None), "save", 1, "f", mirror.write)


def _export(mirror: Mirror, module: Any) -> None:
    turn(module, "save", 1, "f", mirror.write)
    turn(module, "load", 0, "f", mirror.loaded)


def notice_resuming(torch: Any, mirror: Mirror, begun: Callable[[], bool]) -> None:
    """Note that the job goes on from a checkpoint: optimizer state is loaded before a step."""
    cls = torch.optim.Optimizer
    plain = cls.load_state_dict

    @guest
    def note(state: Any) -> None:
        if not begun() and isinstance(state, dict) and state.get("state"):
            mirror.footprints.note("resumed", mirror.last_read or "")

    @functools.wraps(plain)
    def load_state_dict(self: Any, state_dict: Any) -> Any:
        note(state_dict)
        return plain(self, state_dict)

    load_state_dict._torchdynamo_disable = True  # type: ignore[attr-defined]
    patch(cls, "load_state_dict", load_state_dict)
