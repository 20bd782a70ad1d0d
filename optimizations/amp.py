"""AMP: the root module's forward under bfloat16 autocast, its outputs in float32 as before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aiak_tune.optimizations.base import (
    Applied,
    Example,
    Finding,
    Numerics,
    Optimization,
    Params,
    Stage,
)
from aiak_tune.optimizations.examples import PLAIN
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import WorkloadProfile

# What bfloat16 can gain over float32 at best: tensor cores against scalar units in matmuls and
# convolutions (H100: 989 against 67 TFLOP/s), half the bytes everywhere else.
MATMUL_AT_BEST = 16.0
OTHER_AT_BEST = 2.0


class Amp(Optimization):
    """Wrap the root's forward in autocast; gradients and parameters stay float32."""

    name = "amp"
    summary = "bfloat16 autocast of the model, outputs in float32"
    stage = Stage.MODEL
    level = 0
    addresses = frozenset({Category.COMPUTE})
    # float16 needs a GradScaler, which is wrong beside a job's own gradient clipping.
    space = {"dtype": ("bfloat16",)}
    conflicts = frozenset({"tf32"})  # which nothing of weight is left for
    examples = (
        Example(profile=PLAIN, fits=True),
        Example(profile=replace(PLAIN, job=replace(PLAIN.job, amp=True)), fits=False),
        Example(
            profile=replace(
                PLAIN, environment=replace(PLAIN.environment, compute_capability=(7, 5))
            ),
            fits=False,
        ),
    )

    def numerics(self, profile: WorkloadProfile, params: Params) -> Numerics:
        """Lower precision in the forward and its gradients."""
        return Numerics.CHANGING

    def check(self, profile: WorkloadProfile) -> Finding:
        """Fit float32 jobs without precision settings of their own, on hardware with bfloat16."""
        job = profile.job
        if job.dtype != "float32":
            return Finding(fits=False, reason=f"the model's dtype is {job.dtype}, not float32")
        if job.amp or job.grad_scaler:
            return Finding(fits=False, reason="the job chose its own mixed precision")
        refusal = refuse_hardware(profile)
        if refusal is not None:
            return Finding(fits=False, reason=refusal)
        if profile.breakdown_ms is None:
            return Finding(fits=True, reason="the model computes in float32")
        share = profile.share(Category.COMPUTE)
        reason = f"float32 computation takes {share:.0%} of the step"
        return Finding(fits=share > 0, reason=reason, bound=at_best(profile))

    def apply(self, target: Any, params: Params) -> Applied | None:
        """Wrap the root module's forward; see `autocast_forward`."""
        return autocast_forward(target, str(params["dtype"]))

    def by_hand(self, params: Params) -> str:
        """Autocast around the model's forward; its outputs are cast back for the loss."""
        return BY_HAND.format(dtype=params["dtype"])


BY_HAND = """\
import torch
from torch.utils._pytree import tree_map_only

autocast = torch.autocast(next(model.parameters()).device.type, dtype=torch.{dtype})
model.forward = autocast(model.forward)


# The loss stays float32: what the model returns is cast back.
def as_float32(module, args, outputs):
    return tree_map_only(
        torch.Tensor, lambda t: t.float() if t.dtype is torch.{dtype} else t, outputs
    )


model.register_forward_hook(as_float32)
"""


def refuse_hardware(profile: WorkloadProfile) -> str | None:
    """Return why bfloat16 cannot be fast here, None when it may be."""
    environment = profile.environment
    if profile.on_gpu:
        capability = environment.compute_capability
        if capability is None or capability < (8, 0):
            return "bfloat16 needs a GPU of compute capability 8.0"
    elif environment.bf16_fast is False:
        return "this CPU has no bfloat16 instructions and would emulate them"
    return None


def at_best(profile: WorkloadProfile) -> float:
    """Return the speed-up if matmuls reached the tensor cores' peak and the rest its bandwidth."""
    compute = profile.share(Category.COMPUTE)
    matmul = compute if profile.matmul_share is None else min(profile.matmul_share, compute)
    saved = matmul * (1 - 1 / MATMUL_AT_BEST) + (compute - matmul) * (1 - 1 / OTHER_AT_BEST)
    return 1 / max(1 - saved, 1 / MATMUL_AT_BEST)


def autocast_forward(module: Any, dtype: str) -> Applied | None:
    """Run `module`'s forward under autocast from now on; None where that would change nothing.

    Nothing is left in the instance (ops/forwards.py). Usable without the tuner.
    """
    import torch

    from aiak_tune.ops.autocast import Autocast
    from aiak_tune.ops.forwards import wrap_forward

    parameters = [p for p in module.parameters() if p.dtype is torch.float32]
    if not parameters or isinstance(module, torch.nn.DataParallel):
        # DataParallel's threads would get autocast's default dtype, float16, in its place.
        return None
    root = Autocast(parameters[0].device.type, getattr(torch, dtype))
    return Applied(undo=wrap_forward(module, root), effect=root.effect, plain=root.plain)
