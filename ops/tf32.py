"""float32 matrix products of GPUs in TF32, until the job's own code chooses a precision."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from aiak_tune.ops import switches

SIDE = 256  # large enough for tensor cores
BELOW_TF32 = 1 + 2.0**-12  # float32 holds it, TF32's 10 bits of mantissa do not


def in_force() -> bool:
    """Whether float32 matrix products of GPUs may run in TF32.

    Where a job used both of torch's interfaces reading the older one raises: the newer decides.
    """
    matmul = torch.backends.cuda.matmul
    try:
        return bool(matmul.allow_tf32)
    except RuntimeError:
        return str(getattr(matmul, "fp32_precision", "")) == "tf32"


class MatmulInTf32:
    """The setting while it is ours; `chosen_by`: what the job set itself, which took its place."""

    def __init__(self) -> None:
        self.chosen_by: str | None = None
        self._ours = True
        self._newer = getattr(torch.backends.cuda.matmul, "fp32_precision", None)  # since 2.9
        self._stop = switches.listen(switches.PRECISION, self._give_way)
        self._set(True)

    def undo(self) -> None:
        """Put everything back, in both interfaces."""
        self._stop()
        if self._ours:
            self._ours = False
            self._set(False)

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Inside, matrix products are as written."""
        held = self._ours
        if held:
            self._set(False)
        try:
            yield
        finally:
            if held and self._ours:
                self._set(True)

    def _give_way(self, name: str) -> None:
        self.chosen_by = self.chosen_by or name
        self.undo()

    def _set(self, on: bool) -> None:
        """By the older interface, which keeps both in agreement: mixed, reading raises."""
        matmul = torch.backends.cuda.matmul
        with switches.ours(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is a newer one
            matmul.allow_tf32 = on
            if not on and self._newer is not None:
                matmul.fp32_precision = self._newer


def rounds(device: torch.device) -> bool:
    """Whether a float32 matrix product there really loses the digits that TF32 lacks."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        value = torch.full((SIDE, SIDE), BELOW_TF32, device=device, dtype=torch.float32)
        product = value @ torch.eye(SIDE, device=device, dtype=torch.float32)
    return bool((product != BELOW_TF32).all())
