"""Renaming, copying, linking and removing, where a trial's checkpoints are concerned.

As in file_calls.py: what was saved in this slice is moved in its new place. A checkpoint that the
job found there stays, and looks to the job as if it had gone.
"""

from __future__ import annotations

import functools
import os
import shutil
from typing import Any

from aiak_tune.agent.file_calls import Call, relative, stand_in
from aiak_tune.agent.mirror import Mirror

MOST_LOOKED_AT = 1000  # files of a folder
_plain_move = shutil.move


def redirect_moves(mirror: Mirror) -> None:
    """Put the stand-ins in place, until the guest leaves."""
    for owner, names, made in (
        (os, ("rename", "replace"), _move),
        (shutil, ("move",), _move),
        (os, ("remove", "unlink", "rmdir"), _remove),
        (shutil, ("rmtree",), _remove),
        (os, ("symlink", "link"), _link),
        (shutil, ("copy", "copy2", "copyfile"), _copy),
    ):
        for name in names:
            stand_in(owner, name, functools.partial(made, mirror))


def _move(mirror: Mirror, plain: Call) -> Call:
    whole = plain.__name__ == "move"

    def call(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        if relative(kwargs):
            return plain(src, dst, *args, **kwargs)
        source, target = mirror.read(src), _into(src, dst, whole)
        if source is not src:
            result = plain(source, mirror.write(target), *args, **kwargs)
            if os.path.lexists(src):  # what it was saved over has gone too, for the job
                mirror.hide(src)
            return result
        if _theirs(mirror, src, unsure=False):  # a link to each of its files would be too much
            mirror.link(src, target)
            mirror.hide(src)
            return target if whole else None
        if mirror.guards(target):
            _plain_move(src, mirror.write(target))
            return target if whole else None
        mirror.opened(target)
        return plain(src, dst, *args, **kwargs)

    return call


def _copy(mirror: Mirror, plain: Call) -> Call:
    def call(src: Any, dst: Any, follow_symlinks: bool = True, **more: Any) -> Any:
        source, target = mirror.read(src), _into(src, dst, plain.__name__ != "copyfile")
        if source is not src or mirror.guards(target):
            dst = mirror.write(target)
        return plain(source, dst, follow_symlinks=follow_symlinks, **more)

    def copyfile(src: Any, dst: Any, *, follow_symlinks: bool = True) -> Any:
        return call(src, dst, follow_symlinks)

    return copyfile if plain.__name__ == "copyfile" else call


def _remove(mirror: Mirror, plain: Call) -> Call:
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        if relative(kwargs):
            return plain(path, *args, **kwargs)
        place = mirror.read(path)
        if place is not path:
            result = plain(place, *args, **kwargs)
            if os.path.lexists(path):  # what it was saved over has gone too, for the job
                mirror.hide(path)
            return result
        if plain.__name__ != "rmdir" and _theirs(mirror, path, unsure=True):
            second = mirror.second(path)
            if second is not None:
                shutil.rmtree(second, ignore_errors=True)
            mirror.hide(path)
            return None
        return plain(path, *args, **kwargs)

    return call


def _link(mirror: Mirror, plain: Call) -> Call:
    def call(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        if relative(kwargs):
            return plain(src, dst, *args, **kwargs)
        source = src
        if plain.__name__ == "symlink":  # relative to the link, not to where we are
            source = os.path.join(
                os.path.dirname(os.path.abspath(os.fsdecode(dst))), os.fsdecode(src)
            )
        place = mirror.read(source)
        if place is not source or mirror.guards(dst):
            mirror.link(place, dst)
            return None
        return plain(src, dst, *args, **kwargs)

    return call


def _theirs(mirror: Mirror, path: Any, *, unsure: bool) -> bool:
    """Whether this is a checkpoint of the user's, or a folder that has some.

    `unsure`: what to take a folder for that is theirs, and has too many files to look at.
    """
    if mirror.protects(path):
        return True
    if not isinstance(path, (str, os.PathLike)) or mirror.is_own(path):
        return False
    looked, older = 0, False
    for place, _, names in os.walk(os.fspath(path)):
        for name in names:
            file = os.path.join(place, name)
            if mirror.protects(file):
                return True
            looked, older = looked + 1, older or mirror.is_older(file)
            if looked >= MOST_LOOKED_AT:
                return older and unsure
    return False


def _into(src: Any, dst: Any, folder: bool) -> Any:
    """Return the file that a copy or move makes: in the folder `dst`, where it is one."""
    try:
        if folder and os.path.isdir(dst):
            return os.path.join(os.fsdecode(dst), os.path.basename(os.fsdecode(src)))
    except (OSError, TypeError, ValueError):
        pass
    return dst
