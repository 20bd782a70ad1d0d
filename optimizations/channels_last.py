"""Channels-last: convolutions work on memory in which a pixel's channels lie side by side."""

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
from aiak_tune.profiles.workload import ModelFacts, WorkloadProfile

DTYPES = frozenset({"float32", "bfloat16", "float16"})


def _with_model(**changes: Any) -> WorkloadProfile:
    assert PLAIN.job.model is not None
    model = replace(PLAIN.job.model, **changes)
    return replace(PLAIN, job=replace(PLAIN.job, model=model))


class ChannelsLast(Optimization):
    """Lay out the weights of convolutions anew; what the model returns stays as it was.

    Where random numbers are drawn in memory order (dropout on images), each falls on another
    element: the parity gate then finds the losses apart and lets it not pass.
    """

    name = "channels-last"
    summary = "convolution weights and images in channels-last memory"
    stage = Stage.MODEL
    level = 0
    addresses = frozenset({Category.COMPUTE})
    space = {"format": ("channels_last",)}
    conflicts = frozenset[str]()
    examples = (
        Example(profile=PLAIN, fits=True),
        Example(profile=_with_model(convolutions=0), fits=False),
        Example(profile=_with_model(channels_last=True), fits=False),
    )

    def numerics(self, profile: WorkloadProfile, params: Params) -> Numerics:
        """Same dtypes and formula; sums may be ordered otherwise."""
        return Numerics.LOSSLESS

    def check(self, profile: WorkloadProfile) -> Finding:
        """Fit models with convolutions whose weights are not channels-last yet."""
        model, dtype = profile.job.model, profile.job.dtype
        if model is None or model.convolutions is None:
            return Finding(fits=False, reason="it is not known whether the model has convolutions")
        refusal = refuse(model)
        if refusal is None and dtype not in DTYPES:
            refusal = f"the model's dtype is {dtype}, for which it brings nothing"
        if refusal is None and profile.job.ddp:
            refusal = "DDP has laid out its buckets by the weights as they are"
        if refusal is not None:
            return Finding(fits=False, reason=refusal)
        what = f"{model.convolutions} convolutions work on channels-first memory"
        if profile.breakdown_ms is None:
            return Finding(fits=True, reason=what)
        share = profile.share(Category.COMPUTE)
        return Finding(fits=share > 0, reason=f"{what}; computation takes {share:.0%} of the step")

    def apply(self, target: Any, params: Params) -> Applied | None:
        """Lay out the root module's convolutions; see `channels_last`."""
        return channels_last(target)

    def by_hand(self, params: Params) -> str:
        """Lay out the weights, and convert what goes in and comes out."""
        return BY_HAND


BY_HAND = """\
import torch
from torch.utils._pytree import tree_map_only

formats = {4: torch.channels_last, 5: torch.channels_last_3d}
convolutions = (
    torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d
)
for layer in model.modules():
    if isinstance(layer, convolutions):
        weight = layer.weight
        weight.data = weight.data.to(memory_format=formats[weight.dim()])


def images_last(module, args, kwargs):
    def last(t):
        fits = t.dim() in formats and t.is_floating_point()
        return t.to(memory_format=formats[t.dim()]) if fits else t

    return tree_map_only(torch.Tensor, last, (args, kwargs))


# Code that calls .view on what the model returns works as before.
def as_usual(module, args, outputs):
    return tree_map_only(torch.Tensor, torch.Tensor.contiguous, outputs)


model.register_forward_pre_hook(images_last, with_kwargs=True)
model.register_forward_hook(as_usual)
"""


def refuse(model: ModelFacts) -> str | None:
    """Return why this model has nothing to lay out anew, None when it has."""
    if not model.convolutions:
        return "the model has no 2-D or 3-D convolution"
    if model.channels_last:
        return "the model's convolutions are channels-last already"
    return None


def channels_last(module: Any) -> Applied | None:
    """Lay out `module`'s convolutions channels-last; None where there is none to change.

    In place: parameters stay the same objects, and nothing is left in the modules. Usable without
    the tuner, before DistributedDataParallel is made or without it: its buckets take the layout
    that they find. A job that calls `.view(-1)` on such a weight fails, as it would by hand.
    """
    import torch

    from aiak_tune.ops import forwards, layouts, strides

    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    weights = layouts.movable(module)
    if not weights or isinstance(module, parallel):
        return None
    root = layouts.ChannelsLast(weights)
    layouts.lay_out(weights, last=True)
    alignment = strides.Alignment(weights)
    refuse_again = strides.contiguous_in_safetensors()
    unwrap = forwards.wrap_forward(module, root)

    def undo() -> None:
        unwrap()
        refuse_again()
        layouts.lay_out(root.weights, last=False)
        alignment.leave()

    return Applied(undo=undo, effect=root.effect, plain=root.plain)
