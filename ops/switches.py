"""torch's process-wide switches, and who sets them: a setting of ours gives way to the job's own.

While somebody listens, torch's setters are wrapped; what we set ourselves is told to nobody.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

Told = Callable[[str], None]
PRECISION, BENCHMARK, DETERMINISTIC = "precision", "benchmark", "deterministic"
# In torch._C, looked up at each call: what they set, by the name that users write.
PRECISION_SETTERS = {
    "_set_float32_matmul_precision": "torch.set_float32_matmul_precision",
    "_set_cublas_allow_tf32": "torch.backends.cuda.matmul.allow_tf32",
}
_listeners: list[tuple[str, Told]] = []
_way_back: list[Callable[[], None]] = []


class _Ours:
    now = False


@contextmanager
def ours() -> Iterator[None]:
    """What is set inside is not the job's choice."""
    before, _Ours.now = _Ours.now, True
    try:
        yield
    finally:
        _Ours.now = before


def listen(kind: str, told: Told) -> Callable[[], None]:
    """Call `told` with the setting's name just before the job's code sets one of that kind.

    Returns the way to end it.
    """
    listener = (kind, told)
    if not _listeners:
        _install()
    _listeners.append(listener)

    def stop() -> None:
        if listener in _listeners:
            _listeners.remove(listener)
            if not _listeners:
                while _way_back:
                    _way_back.pop()()

    return stop


class Setting:
    """A setting of ours: in force until `undo`, or until the job's code sets one of the kinds.

    Args:
        put: sets it (True), or puts back what was before (False).
        kinds: what the job must set for its own choice to take the place of ours.
    """

    def __init__(self, put: Callable[[bool], None], *kinds: str) -> None:
        self.chosen_by: str | None = None
        self._put, self._held = put, True
        self._stops = [listen(kind, self._give_way) for kind in kinds]
        self._set(True)

    def undo(self) -> None:
        """Put back what was before, where it is still ours to do so."""
        for stop in self._stops:
            stop()
        if self._held:
            self._held = False
            self._set(False)

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Inside, all is as written."""
        if self._held:
            self._set(False)
        try:
            yield
        finally:
            if self._held:
                self._set(True)

    def _give_way(self, name: str) -> None:
        self.chosen_by = self.chosen_by or name
        self.undo()

    def _set(self, on: bool) -> None:
        with ours():
            self._put(on)


def _say(kind: str, name: str) -> None:
    if _Ours.now or _by_torch():
        return
    for wanted, told in tuple(_listeners):
        if wanted == kind:
            told(name)


def _by_torch() -> bool:
    """Whether torch sets it for itself: dynamo puts back what it found, after each compilation."""
    frame = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name not in (__name__, "torch") and not name.startswith("torch.backends"):
            return name.startswith("torch.")
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _install() -> None:
    for setter, name in PRECISION_SETTERS.items():
        _wrap(torch._C, setter, partial(_any, PRECISION, name))
    if hasattr(torch._C, "_set_fp32_precision_setter"):  # since torch 2.9
        _wrap(torch._C, "_set_fp32_precision_setter", _fp32_precision)
    _wrap(torch._C, "_set_deterministic_algorithms", _deterministic_algorithms)
    cudnn = vars(type(torch.backends.cudnn))  # its properties hold their setters themselves
    for kind, name in ((PRECISION, "allow_tf32"), (BENCHMARK, "benchmark")):
        _wrap(cudnn[name], "setter", partial(_any, kind, f"torch.backends.cudnn.{name}"))
    _wrap(cudnn["deterministic"], "setter", _cudnn_deterministic)


def _wrap(owner: Any, name: str, seen: Callable[[tuple[Any, ...]], None]) -> None:
    plain = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        seen(args)
        return plain(*args, **kwargs)

    def back() -> None:
        if getattr(owner, name) is wrapped:
            setattr(owner, name, plain)

    setattr(owner, name, wrapped)
    _way_back.append(back)


def _any(kind: str, name: str, args: tuple[Any, ...]) -> None:
    _say(kind, name)


def _fp32_precision(args: tuple[Any, ...]) -> None:
    """The newer interface, by backend and operator; "none" is torch's own default."""
    backend, _, value = args
    if backend != "mkldnn" and value != "none":
        _say(PRECISION, "fp32_precision")


def _deterministic_algorithms(args: tuple[Any, ...]) -> None:
    if args[0]:
        _say(DETERMINISTIC, "torch.use_deterministic_algorithms")


def _cudnn_deterministic(args: tuple[Any, ...]) -> None:
    if args[0]:
        _say(DETERMINISTIC, "torch.backends.cudnn.deterministic")
