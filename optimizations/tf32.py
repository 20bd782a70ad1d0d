"""TF32: float32 matrix products on tensor cores, with a 10-bit mantissa."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aiak_tune.optimizations.base import (
    Applied,
    Example,
    Finding,
    NoEffectError,
    Numerics,
    Optimization,
    Params,
    Stage,
)
from aiak_tune.optimizations.examples import ON_CPU, PLAIN
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import WorkloadProfile

OLDEST_GPU = (8, 0)
# TF32 on tensor cores against float32 on scalar units (A100: 156 against 19.5 TFLOP/s).
AT_BEST = 8.0
VARIABLES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")


def _job(**changes: Any) -> WorkloadProfile:
    return replace(PLAIN, job=replace(PLAIN.job, **changes))


class Tf32(Optimization):
    """Let matrix products run in TF32; of convolutions torch does so by itself."""

    name = "tf32"
    summary = "float32 matrix products of GPUs in TF32"
    stage = Stage.PROCESS
    level = 0
    addresses = frozenset({Category.COMPUTE})
    space = {"allow": (True,)}
    # Under autocast no product of weight is left in float32.
    conflicts = frozenset({"amp"})
    examples = (
        Example(profile=PLAIN, fits=True),
        Example(profile=_job(tf32=True), fits=False),
        Example(profile=_job(amp=True), fits=False),
        Example(profile=_job(precision_by="torch.set_float32_matmul_precision"), fits=False),
        Example(profile=replace(PLAIN, fp32_matmul_share=0.0), fits=False),
        Example(profile=replace(PLAIN, convolution_share=0.25), fits=False),
        Example(profile=ON_CPU, fits=False),
    )

    def numerics(self, profile: WorkloadProfile, params: Params) -> Numerics:
        """Factors lose 13 bits of their mantissa; sums stay float32."""
        return Numerics.CHANGING

    def check(self, profile: WorkloadProfile) -> Finding:
        """Fit float32 matrix products on tensor cores, where nobody chose their precision."""
        refusal = refuse(profile) or refuse_job(profile)
        if refusal is not None:
            return Finding(fits=False, reason=refusal)
        share = profile.fp32_matmul_share
        if share is None:
            return Finding(fits=True, reason="the model computes in float32")
        # Of convolutions cuDNN takes TF32 by torch's own default.
        share = max(0.0, share - (profile.convolution_share or 0.0))
        reason = f"float32 matrix products take {share:.0%} of the step"
        if profile.convolution_share is None:
            reason = f"float32 matrix products and convolutions take {share:.0%} of the step"
        bound = 1 / max(1 - share * (1 - 1 / AT_BEST), 1 / AT_BEST)
        return Finding(fits=share > 0, reason=reason, bound=bound)

    def apply(self, target: Any, params: Params) -> Applied | None:
        """Allow TF32, unless the user chose by a variable; see `allow_tf32`."""
        chosen = chosen_precision(os.environ)
        if chosen is not None:
            raise NoEffectError(f"{chosen} is set for the job, and was left alone")
        return allow_tf32()

    def by_hand(self, params: Params) -> str:
        """Set torch's own switch, by the interface that all its versions have."""
        return "import torch\n\ntorch.backends.cuda.matmul.allow_tf32 = True\n"


def refuse(profile: WorkloadProfile) -> str | None:
    """Return why TF32 is nothing for where the model computes, None when it may be."""
    if profile.job.model is None:
        return "no model was seen to train"
    if not profile.on_gpu:
        return "the model computes on the CPU, and TF32 is a format of GPUs"
    capability = profile.environment.compute_capability
    if capability is None or capability < OLDEST_GPU:
        return "TF32 needs a GPU of compute capability 8.0"
    return None


def refuse_job(profile: WorkloadProfile) -> str | None:
    """Return why the job's precision is left alone, None when TF32 may change it."""
    job = profile.job
    if job.dtype != "float32":
        return f"the model's dtype is {job.dtype}, not float32"
    if job.amp or job.grad_scaler:
        return "the job chose its own mixed precision"
    if job.tf32:
        return "the job's matrix products run in TF32 already"
    if job.precision_by is not None:
        return f"the job chose its float32 precision by {job.precision_by}"
    return None


def chosen_precision(environment: Mapping[str, str]) -> str | None:
    """Return the variable by which the user chose for or against TF32, as `NAME=value`."""
    return next((f"{n}={environment[n]}" for n in VARIABLES if n in environment), None)


def allow_tf32() -> Applied | None:
    """Let float32 matrix products of GPUs run in TF32; None where they do. For use by hand too.

    Gives way to whatever precision the job's code sets afterwards.
    """
    import torch

    from aiak_tune.ops import tf32

    if tf32.in_force():
        return None
    setting = tf32.setting()

    def effect() -> str | None:
        if setting.chosen_by is not None:
            raise NoEffectError(f"the job chose its float32 precision by {setting.chosen_by}")
        if not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return None  # nothing was computed on a GPU
        device = torch.device("cuda", torch.cuda.current_device())
        if not tf32.in_force() or not tf32.rounds(device):
            raise NoEffectError("float32 matrix products keep all their digits on this GPU")
        return "float32 matrix products rounded to TF32"

    return Applied(undo=setting.undo, effect=effect, plain=setting.plain)
