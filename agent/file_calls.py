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
    for holder in _holders():
        for alias, value in list(vars(holder).items()):
            if value is plain or getattr(value, "__func__", None) is plain:
                patch(holder, alias, new)
    return new


def _holders() -> Iterator[Any]:
    """Give what took functions from `os` before us: parts of Python, and the job's script."""
    yield sys.modules["__main__"]  # `from os import rename` stands above `import torch`
    for module, name in (("pathlib", "_NormalAccessor"), ("glob", "_StringGlobber")):
        holder = getattr(sys.modules.get(module), name, None)  # Python 3.10; 3.13 and later
        if holder is not None:
            yield holder


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
        names, ours = plain(path), plain(place)
        shown = {*ours}
        return ours + [n for n in names if n not in shown and not mirror.hides_in(place, n)]

    return call


def _scandir(mirror: Mirror, plain: Call) -> Call:
    def call(path: Any = ".") -> Any:
        place = mirror.second(path)
        if place is not None:
            return _Entries(mirror, path, place, plain(place), plain(path))
        place = mirror.read(path)
        if place is path or isinstance(path, bytes):
            return plain(place)
        return _Entries(mirror, path, place, plain(place))

    return call


class _Entry:
    """An entry of a folder of ours, under the name that the job gave it."""

    def __init__(self, entry: Any, folder: Any) -> None:
        self.name: str = entry.name
        self.path: str = os.path.join(folder, entry.name)
        for name in ("inode", "is_dir", "is_file", "is_symlink", "stat"):
            setattr(self, name, getattr(entry, name))

    def __fspath__(self) -> str:
        return self.path


class _Entries:
    """The entries of a folder: what was saved, then those of the user's that it does not hide."""

    def __init__(
        self, mirror: Mirror, path: Any, place: str, ours: Any, theirs: Any = None
    ) -> None:
        with ours:
            self._first = [_Entry(entry, path) for entry in ours]
        self._theirs = theirs
        self._all = self._both(mirror, place)

    def _both(self, mirror: Mirror, place: str) -> Iterator[Any]:
        names = {entry.name for entry in self._first}
        yield from self._first
        for entry in self._theirs or ():
            if entry.name not in names and not mirror.hides_in(place, entry.name):
                yield entry

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> Any:
        return next(self._all)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the user's folder; ours is read."""
        if self._theirs is not None:
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
