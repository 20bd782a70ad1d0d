"""What torch.compile does in this process: counted, and waited for before steps are.

Read from dynamo's own counters where the job, or a setting, has loaded it; nothing is imported.
"""

from __future__ import annotations

import sys
from typing import Any

QUIET_STEPS = 3  # without a frame compiled in any of them, compiling is over
LONGEST_WAIT = 64  # steps beyond the warm-up; torch gives a frame up at its eighth compilation


class Compiling:
    """Frames that dynamo compiled, step by step."""

    def __init__(self) -> None:
        self._frames = frames_compiled()
        self._last = self._steps = self._waited = 0  # _last: the step of the last compilation
        self._at_window: int | None = None
        self._in_window = 0

    def step(self) -> None:
        """A step of the warm-up ended."""
        self._steps += 1
        frames = frames_compiled()
        if frames != self._frames:
            self._frames, self._last = frames, self._steps

    def draws_change(self) -> None:
        """Compiled models that drew as the plain code does are compiled anew at the next step."""
        if self._last:
            self._last = self._steps

    def settled(self) -> bool:
        """Whether steps may be counted: nothing was compiled lately, or it never ends."""
        if not self._last or self._steps - self._last >= QUIET_STEPS:
            return True
        self._waited += 1
        return self._waited > LONGEST_WAIT

    def window_opens(self) -> None:
        """Steps count from here."""
        self._at_window = frames_compiled()

    def window_closed(self) -> None:
        """Steps count no more."""
        if self._at_window is not None:
            self._in_window = frames_compiled() - self._at_window

    def warnings(self) -> list[list[str]]:
        """Return what a reader of the figures must know, as [code, text]."""
        if self._in_window > 0 or self._waited > LONGEST_WAIT:
            text = (
                f"torch.compile was at work in the counted steps ({self._in_window} frames, "
                f"{recompiles()} recompiles in all): the job is not stable in the slice"
            )
            return [["not_stable", text]]
        if recompiles():
            text = (
                f"torch.compile compiled {recompiles()} times anew; counting began "
                f"{self._steps - self._last} steps after the last time, at step {self._steps}"
            )
            return [["recompiles", text]]
        return []


def frames_compiled() -> int:
    """Return how often dynamo compiled a frame, or tried to; 0 where it is not loaded."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["frames"]["total"])


def graphs_compiled() -> int:
    """Return how many graphs came of it."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])


def recompiles() -> int:
    """Return how many of the frames were compiled before, for other shapes or values."""
    module: Any = sys.modules.get("torch._dynamo.convert_frame")
    counts = getattr(module, "FRAME_COMPILE_COUNTER", {})
    return sum(count - 1 for count in counts.values())
