"""Calls us when a module has been imported: nothing is imported for our sake."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from aiak_tune.agent.guest import GUEST, guest

Told = Callable[[Any], None]


class _Watch:
    """A finder that finds nothing by itself: it follows the loader of the modules it waits for."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Told]] = {}
        self._searching = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that the others find, with its loader followed."""
        self.settle()
        if name not in self.waiting or self._searching:
            return None
        self._searching = True
        try:
            spec = self._others(name, path, target)
        finally:
            self._searching = False
        if spec is not None and getattr(spec.loader, "exec_module", None):
            self._follow(spec.loader, name)
        return spec

    def _others(self, name: str, path: Any, target: Any) -> Any:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                return spec
        return None

    def _follow(self, loader: Any, name: str) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            vars(loader).pop("exec_module", None)
            self._tell(name, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader that takes none: its module stays as it is
            pass

    def settle(self) -> None:
        """Tell of modules that are there, though nobody said so.

        Their import was under way when torch was imported in its midst, or another finder that
        follows imports, as trackers have them, went before us.
        """
        for name in list(self.waiting):  # another thread may import as well
            module = sys.modules.get(name)
            if module is not None and not _initializing(module):
                self._tell(name, module)

    def _tell(self, name: str, module: Any) -> None:
        for told in self.waiting.pop(name, ()):
            told(module)


_WATCH = _Watch()


def when_imported(name: str, told: Told) -> None:
    """Call `told` with the module once it is there: now, or right after its import."""
    told = guest(told)
    module = sys.modules.get(name)
    if module is not None and not _initializing(module):
        told(module)
        return
    _WATCH.waiting.setdefault(name, []).append(told)
    if _WATCH not in sys.meta_path:
        sys.meta_path.insert(0, _WATCH)
        GUEST.leave.append(_leave)


def settle() -> None:
    """Look for modules whose import was not seen: called when training begins."""
    _WATCH.settle()


def _leave() -> None:
    _WATCH.waiting.clear()
    if _WATCH in sys.meta_path:
        sys.meta_path.remove(_WATCH)


def _initializing(module: Any) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
