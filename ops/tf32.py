"""float32 matrix products of GPUs in TF32, until the job's own code chooses a precision."""

from __future__ import annotations

import warnings

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


def setting() -> switches.Setting:
    """Put it in force, until it is undone or the job's code chooses a precision."""
    matmul = torch.backends.cuda.matmul
    newer = getattr(matmul, "fp32_precision", None)  # since torch 2.9

    def put(on: bool) -> None:
        """By the older interface, which keeps both in agreement: mixed, reading raises."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is a newer one
            matmul.allow_tf32 = on
            if not on and newer is not None:
                matmul.fp32_precision = newer

    return switches.Setting(put, switches.PRECISION)


def rounds(device: torch.device) -> bool:
    """Whether a float32 matrix product there really loses the digits that TF32 lacks.

    In the midst of a capture, which a look at the result would break: whether it may.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return in_force()
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        value = torch.full((SIDE, SIDE), BELOW_TF32, device=device, dtype=torch.float32)
        product = value @ torch.eye(SIDE, device=device, dtype=torch.float32)
    return bool((product != BELOW_TF32).all())
