"""Python's own file calls, where a trial's checkpoints are concerned: opening, looking, listing.

Jobs write a checkpoint beside its place and rename it, copy the best one, remove old ones, look
whether one is there. What concerns a file that was saved in this slice happens in its new place;
a checkpoint of the user's is neither overwritten nor removed. Everything else passes through.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import pathlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

from aiak_tune.agent.hooks import patch
from aiak_tune.agent.mirror import Mirror

LOOKS = ("stat", "access", "chmod", "utime")  # the first argument is read where the file is
_RELATIVE = ("dir_fd", "src_dir_fd", "dst_dir_fd")  # to an open folder, which is left as it is

Call = Callable[..., Any]


class StandIn:
    """Stands for a built-in function: as that one, it is no method where a class holds it."""

    def __init__(self, plain: Call, call: Call) -> None:
        functools.update_wrapper(self, plain)
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do what the function does, in the right place."""
        return self._call(*args, **kwargs)

    def __reduce__(self) -> Any:
        """Pickle by name, as a function is: it may go to a process that has no stand-in."""
        name: str = self.__name__  # type: ignore[attr-defined]
        owner = "io" if name == "open" else "os" if hasattr(os, name) else "shutil"
        return pkgutil.resolve_name, (f"{owner}:{name}",)


def stand_in(owner: Any, name: str, made: Callable[[Call], Call]) -> StandIn:
    """Put `made(plain)` in the place of a function, wherever the job may have it from."""
    plain = getattr(owner, name)
    new = StandIn(plain, made(plain))
    patch(owner, name, new)
    # `os.supports_*` hold the plain functions; code asks them with the name from `os`.
    for known in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
        if plain in known:
            known.add(new)
    accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 keeps them there
    script = sys.modules.get("__main__")  # `from os import rename` came before torch
    for holder in (accessor, script):
        for alias, value in list(vars(holder).items()) if holder is not None else ():
            if value is plain:
                patch(holder, alias, new)
    return new


def redirect_file_calls(mirror: Mirror) -> None:
    """Put the stand-ins in place, until the guest leaves."""
    patch(builtins, "open", stand_in(io, "open", functools.partial(_open, mirror)))
    for name in LOOKS:
        stand_in(os, name, functools.partial(_look, mirror))
    stand_in(os, "listdir", functools.partial(_listdir, mirror))
    stand_in(os, "scandir", functools.partial(_scandir, mirror))
    stand_in(os, "mkdir", functools.partial(_mkdir, mirror))


def relative(kwargs: dict[str, Any]) -> bool:
    """Whether a path of this call is relative to an open folder."""
    return any(kwargs.get(name) is not None for name in _RELATIVE)


def _open(mirror: Mirror, plain: Call) -> Call:
    def call(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        own_way = len(args) > 5 or kwargs.get("opener") is not None
        if isinstance(mode, str) and not isinstance(file, int) and not own_way:
            file, mode = _where(mirror, file, mode)
        return plain(file, mode, *args, **kwargs)

    return call


def _where(mirror: Mirror, file: Any, mode: str) -> tuple[Any, str]:
    anew = "w" in mode or "x" in mode
    if not anew and "a" not in mode and "+" not in mode:
        return mirror.read(file), mode
    if not mirror.guards(file, anew=anew) and mirror.read(file) is file:
        mirror.opened(file)
        return file, mode
    place = mirror.write(file) if anew else mirror.copied(file)
    return place, mode.replace("x", "w") if place == os.devnull else mode


def _look(mirror: Mirror, plain: Call) -> Call:
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        if not relative(kwargs):
            path = mirror.read(path)
        return plain(path, *args, **kwargs)

    return call


def _listdir(mirror: Mirror, plain: Call) -> Call:
    def call(path: Any = ".") -> Any:
        place = mirror.second(path)
        if place is None:
            return plain(mirror.read(path))
        names = plain(path)
        kept = [n for n in names if not mirror.hides(os.path.join(path, n))]
        return kept + [n for n in plain(place) if n not in names]

    return call


def _scandir(mirror: Mirror, plain: Call) -> Call:
    def call(path: Any = ".") -> Any:
        place = mirror.second(path)
        if place is None:
            return plain(mirror.read(path))
        return _Both(mirror, path, plain(path), plain(place))

    return call


class _Both:
    """The entries of a folder that is in both places; what was saved stands for what was there."""

    def __init__(self, mirror: Mirror, path: Any, theirs: Any, ours: Any) -> None:
        with ours:
            first = list(ours)
        self._theirs = theirs
        self._entries = self._merged(mirror, path, first)

    def _merged(self, mirror: Mirror, path: Any, first: list[Any]) -> Iterator[Any]:
        names = {entry.name for entry in first}
        yield from first
        for entry in self._theirs:
            if entry.name not in names and not mirror.hides(os.path.join(path, entry.name)):
                yield entry

    def __iter__(self) -> _Both:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Both:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the user's folder; ours is read."""
        self._theirs.close()


def _mkdir(mirror: Mirror, plain: Call) -> Call:
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        if relative(kwargs):
            return plain(path, *args, **kwargs)
        if mirror.keeps(path):  # below a folder that was saved, or one that it has removed
            return plain(mirror.write(path), *args, **kwargs)
        result = plain(path, *args, **kwargs)
        mirror.opened(path, made=True)
        return result

    return call
