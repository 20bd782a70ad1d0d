"""Channels-last memory: weights of convolutions, what goes into a model, what comes out."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from aiak_tune.ops.forwards import Around
from aiak_tune.ops.outputs import with_tensors

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
KINDS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def convolution_weights(module: nn.Module) -> list[nn.Parameter]:
    """Return the weights of the 2-D and 3-D convolutions in the module, each once.

    What a parametrization computes at each forward, and what has no shape yet, is no weight here.
    """
    weights = {}
    for part in module.modules():
        weight = part._parameters.get("weight") if isinstance(part, KINDS) else None
        if type(weight) is nn.Parameter and weight.dim() in FORMATS:
            weights[id(weight)] = weight
    return list(weights.values())


def is_last(tensor: torch.Tensor) -> bool:
    """Whether the strides are exactly those of channels-last.

    `is_contiguous` would say so of a 1 x 1 kernel in any layout, and torch chooses the layout of
    what a convolution returns by the strides.
    """
    if tensor.dim() not in FORMATS:
        return False
    channels, *space = tensor.shape[1:]
    strides, step = [], channels
    for size in reversed(space):
        strides.append(step)
        step *= size
    return tuple(tensor.stride()) == (step, 1, *reversed(strides))


def movable(module: nn.Module) -> list[nn.Parameter]:
    """Return the weights of convolutions that can be laid out anew.

    One that shares its memory (a part of a flat buffer, tied by `.data`) must stay where it is.
    """
    known = (p for p in module.parameters() if type(p) is nn.Parameter)
    homes = Counter(p.data_ptr() for p in known)
    return [
        w
        for w in convolution_weights(module)
        if w.is_floating_point()
        and w.layout is torch.strided
        and w.is_contiguous()
        and not is_last(w)
        and homes[w.data_ptr()] == 1
        and w.untyped_storage().nbytes() == w.numel() * w.element_size()
    ]


def lay_out(weights: Sequence[nn.Parameter], *, last: bool) -> None:
    """Put each weight, and its gradient where it has one, into channels-last or ordinary order."""
    with torch.no_grad():
        for weight in weights:
            to = FORMATS[weight.dim()] if last else torch.contiguous_format
            weight.data = weight.data.to(memory_format=to)
            if weight.grad is not None:
                weight.grad.data = weight.grad.data.to(memory_format=to)


def as_last(tensor: torch.Tensor) -> torch.Tensor:
    """Return what goes into a model in channels-last, if it is a float image or volume."""
    fits = tensor.dim() in FORMATS and tensor.is_floating_point() and tensor.is_contiguous()
    return tensor.to(memory_format=FORMATS[tensor.dim()]) if fits else tensor


def as_usual(tensor: torch.Tensor) -> torch.Tensor:
    """Return what comes out of a model in the ordinary order, so that `.view` works as before."""
    form = FORMATS.get(tensor.dim())
    if form is None or tensor.is_contiguous() or not tensor.is_contiguous(memory_format=form):
        return tensor
    return tensor.contiguous()


class ChannelsLast(Around):
    """One root module whose convolutions are laid out channels-last."""

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        super().__init__()
        # A job may be done with this model, and go on with another one.
        self._weights = [weakref.ref(w) for w in weights]

    @property
    def weights(self) -> list[nn.Parameter]:
        """The weights that were laid out anew, as far as they are still there."""
        return [w for w in (ref() for ref in self._weights) if w is not None]

    def around(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call `forward` with its images channels-last, and give back ordinary tensors."""
        args = tuple(as_last(a) if isinstance(a, torch.Tensor) else a for a in args)
        kwargs = {k: as_last(a) if isinstance(a, torch.Tensor) else a for k, a in kwargs.items()}
        return with_tensors(forward(*args, **kwargs), as_usual, {})

    def effect(self) -> str | None:
        """Say how many convolutions ran channels-last and how often; None when none did."""
        still = sum(is_last(w) for w in self.weights)
        seen = self.seen()
        return f"{still} convolutions channels-last in {seen}" if seen and still else None

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Compute as written while inside, with the weights in their ordinary order too."""
        lay_out(self.weights, last=False)
        try:
            with super().plain():
                yield
        finally:
            lay_out(self.weights, last=True)
