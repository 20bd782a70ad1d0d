"""Compile: the model's forward and backward as fused kernels, by torch.compile in place."""

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

OLDEST_GPU = (7, 0)  # what triton compiles for
# Wrappers with hooks and buckets of their own, with which this was not tried.
WRAPPERS = ("DataParallel", "FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine")


class Compile(Optimization):
    """Compile the root module's call; its class, keys and pickles stay.

    Shapes that vary are left to torch: it compiles once more with those that changed kept open.
    """

    name = "compile"
    summary = "torch.compile of the model, in place"
    stage = Stage.MODEL
    level = 0
    addresses = frozenset({Category.COMPUTE, Category.GAP})
    space = {"mode": ("default",)}
    conflicts = frozenset[str]()
    examples = (
        Example(profile=PLAIN, fits=True),
        Example(profile=replace(PLAIN, job=replace(PLAIN.job, compiled=True)), fits=False),
        Example(
            profile=replace(PLAIN, environment=replace(PLAIN.environment, triton=False)),
            fits=False,
        ),
    )

    def numerics(self, profile: WorkloadProfile, params: Params) -> Numerics:
        """Same dtypes and formula; sums and random draws may be ordered otherwise."""
        return Numerics.LOSSLESS

    def check(self, profile: WorkloadProfile) -> Finding:
        """Fit jobs that compile nothing themselves, where the compilers that it needs are."""
        job = profile.job
        if job.model is None:
            return Finding(fits=False, reason="no model was seen to train")
        if job.compiled:
            return Finding(fits=False, reason="the job is compiled already, by itself")
        lacking = lacks(profile)
        if lacking is not None:
            return Finding(fits=False, reason=lacking)
        if profile.breakdown_ms is None:
            return Finding(fits=True, reason="the model runs operator by operator")
        share = profile.share(Category.COMPUTE) + profile.share(Category.GAP)
        reason = f"operators one by one, and launching them, take {share:.0%} of the step"
        return Finding(fits=share > 0, reason=reason)

    def apply(self, target: Any, params: Params) -> Applied | None:
        """Compile the root module's call; see `compile_in_place`."""
        return compile_in_place(target, mode=str(params["mode"]))

    def by_hand(self, params: Params) -> str:
        """Compile the model's call, whoever wrote its class."""
        return BY_HAND.format(mode=params["mode"])


BY_HAND = """\
import torch


# As model.compile() does, which silently compiles nothing of torch's own classes (Sequential,
# TransformerEncoder): the function to begin at must not be one of torch's.
def call(*args, **kwargs):
    return model._call_impl(*args, **kwargs)


model._compiled_call_impl = torch.compile(call, mode="{mode}")
"""


def lacks(profile: WorkloadProfile) -> str | None:
    """Return what torch.compile would need and is not here, None when nothing is missed."""
    environment = profile.environment
    if environment.compiler is False:
        return (
            "torch.compile needs a C++ compiler and Python's headers (Debian: g++, python3-dev), "
            "and the job's environment has none"
        )
    if not profile.on_gpu:
        return None
    if environment.triton is False:
        return "torch.compile needs triton on a GPU, and the job's environment has none"
    capability = environment.compute_capability
    if environment.cuda and capability is not None and capability < OLDEST_GPU:
        return "torch.compile needs a GPU of compute capability 7.0"
    return None


def compile_in_place(
    module: Any, *, mode: str = "default", backend: str = "inductor"
) -> Applied | None:
    """Send `module`'s calls through torch.compile from now on; None where it is compiled already.

    The model inside DistributedDataParallel is compiled, before it is wrapped or after: torch then
    splits the graph where gradients are reduced. Usable without the tuner.
    """
    import torch

    from aiak_tune.ops.compiled import CompiledModule

    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        module = module.module
    if any(cls.__name__ in WRAPPERS for cls in type(module).__mro__):
        return None
    if isinstance(module, torch.jit.ScriptModule) or is_compiled(module):
        return None
    compiled = CompiledModule(module, backend, mode)
    return Applied(undo=compiled.undo, effect=compiled.effect, plain=compiled.plain)


def is_compiled(module: Any) -> bool:
    """Whether the module, or one inside it, goes through torch.compile."""
    return any(
        type(part).__name__ == "OptimizedModule"
        or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )
