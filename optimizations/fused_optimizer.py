"""Fused optimizer: torch's own one-kernel update in place of a loop over tensors."""

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
from aiak_tune.profiles.workload import OptimizerFacts, WorkloadProfile

# Those of torch that have a fused implementation, and what it knows.
CLASSES = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
DTYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
HALVES = frozenset({"float16", "bfloat16"})
HALF_ON_CPU = frozenset({"Adam", "AdamW"})  # see ops/fused_update.py
# Fused updates were seen at up to 5 times the speed of the loop, so a fifth of the time stays.
SAVED_AT_BEST = 0.8


class FusedOptimizer(Optimization):
    """Flip `fused` on at the optimizer's first step."""

    name = "fused-optimizer"
    summary = "torch's fused Adam, AdamW, SGD or Adagrad update"
    stage = Stage.OPTIMIZER
    level = 0
    addresses = frozenset({Category.COMPUTE, Category.GAP})
    space = {"fused": (True,)}
    conflicts = frozenset[str]()
    examples = (
        Example(profile=PLAIN, fits=True),
        Example(
            profile=replace(
                PLAIN,
                job=replace(PLAIN.job, optimizer_facts=OptimizerFacts(cls="RMSprop")),
            ),
            fits=False,
        ),
    )

    def numerics(self, profile: WorkloadProfile, params: Params) -> Numerics:
        """Same dtypes and formula; a rounding may fall elsewhere."""
        return Numerics.LOSSLESS

    def check(self, profile: WorkloadProfile) -> Finding:
        """Fit exactly torch's classes, on dtypes and one device type that the kernels know."""
        facts = profile.job.optimizer_facts
        if facts is None:
            return Finding(fits=False, reason="no optimizer was seen to step")
        refusal = refuse(facts)
        if refusal is not None:
            return Finding(fits=False, reason=refusal)
        now = "foreach" if facts.foreach else "plain"
        reason = f"{facts.cls} updates {facts.parameters:,} parameters with torch's {now} code"
        if facts.step_ms is None:
            return Finding(fits=True, reason=f"{reason}; its time was not measured")
        step_ms = profile.steps.step_ms.mean
        rest_ms = step_ms - SAVED_AT_BEST * min(facts.step_ms, step_ms)
        bound = step_ms / rest_ms if rest_ms > 0 else None
        return Finding(fits=True, reason=f"{reason} in {facts.step_ms:.3g} ms", bound=bound)

    def apply(self, target: Any, params: Params) -> Applied | None:
        """Switch the optimizer to its fused implementation; see `fuse`."""
        return fuse(target)

    def by_hand(self, params: Params) -> str:
        """Flip the flags of each group, as `fused=True` does in the constructor."""
        return BY_HAND


BY_HAND = """\
# Or where it is made: fused=True among the optimizer's arguments
for group in optimizer.param_groups:
    group.update(fused=True, foreach=False)
"""


def refuse(facts: OptimizerFacts) -> str | None:
    """Return why this optimizer is left alone, None when it can be fused."""
    devices = {device.split(":")[0] for device in facts.devices}
    if facts.cls not in CLASSES:
        return f"torch has no fused {facts.cls}"
    if not facts.exact_class:
        return f"a subclass of {facts.cls} may have changed the update"
    if facts.fused:
        return f"{facts.cls} is fused already"
    if facts.differentiable or facts.capturable:
        return f"{facts.cls} is differentiable or capturable, which the job must have chosen"
    if not set(facts.dtypes) <= DTYPES:
        return f"the fused kernels do not know {', '.join(sorted(set(facts.dtypes) - DTYPES))}"
    if "cpu" in devices and facts.cls not in HALF_ON_CPU and set(facts.dtypes) & HALVES:
        return f"on the CPU torch's fused {facts.cls} skips half-precision parameters"
    if len(devices) > 1:
        return f"parameters lie on several kinds of device: {', '.join(sorted(devices))}"
    return None


def fuse(optimizer: Any) -> Applied | None:
    """Turn on `fused` for each group that can take it; None when none can.

    Usable without the tuner, at any step: `step` counters of a resumed state move to where the
    fused kernels want them. The flag goes into `state_dict` like the job's own would.
    """
    import torch

    from aiak_tune.ops.fused_update import Fusion

    kind = type(optimizer)
    if kind.__name__ not in CLASSES or kind is not getattr(torch.optim, kind.__name__):
        return None
    if any(group.get("fused", True) for group in optimizer.param_groups):
        return None
    fusion = Fusion(optimizer)
    if not fusion.switch():
        return None
    # A checkpoint brings the flags of the run that wrote it; GradScaler would then hand its
    # scale to the plain code, which raises.
    hook = optimizer.register_load_state_dict_post_hook(lambda _: fusion.switch() and None)
    fusion.witness.watch()

    def undo() -> None:
        hook.remove()
        fusion.restore()

    return Applied(undo=undo, effect=fusion.effect)
