"""Keeping an optimizer's state in the memory order of weights that were laid out anew.

torch's fused updates on the CPU read weight, gradient and state element by element in memory
order, whatever their strides (seen on 2.13: Adam, AdamW, SGD, Adagrad): with another order in one
of them they mix elements up, silently. On CUDA they raise, and foreach falls back to a slow path.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from aiak_tune.ops.layouts import is_last

Hook = Any


class Alignment:
    """Holds every optimizer that steps these weights to their memory order."""

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        # Weakly: a job may be done with this model, and go on with another one.
        self.weights = {id(w): weakref.ref(w) for w in weights}
        self.on = True
        # The weights of each optimizer that was seen, and what takes our hooks away.
        self.seen: weakref.WeakKeyDictionary[Optimizer, list[torch.Tensor]]
        self.seen = weakref.WeakKeyDictionary()
        self.hooks: list[Hook] = []
        # Never removed: a removal from inside a step would end torch's own loop over the hooks
        # with an error.
        register_optimizer_step_pre_hook(self.before_step)

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Align the state at the first step, and gradients before each that is fused."""
        if not self.on:
            return
        mine = self.seen.get(optimizer)
        if mine is None:
            mine = self.seen[optimizer] = self.meet(optimizer)
        if mine and any(group.get("fused") for group in optimizer.param_groups):
            for weight in mine:
                # The job may have put one there itself; those of backward come in order.
                if weight.grad is not None and weight.grad.stride() != weight.stride():
                    weight.grad.data = in_order_of(weight, weight.grad.data)

    def meet(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """Align the state that is there, and what checkpoints bring later; return its weights."""
        mine = [p for g in optimizer.param_groups for p in g["params"] if self.has(p)]
        if mine:
            self.align(optimizer)
            self.hooks += [
                optimizer.register_load_state_dict_post_hook(self.align),
                optimizer.register_state_dict_post_hook(self.saved),
            ]
        return mine

    def has(self, parameter: torch.Tensor) -> bool:
        """Whether this is one of the weights; a dead one's id may have another owner."""
        ref = self.weights.get(id(parameter))
        return ref is not None and ref() is parameter

    def align(self, optimizer: Optimizer) -> None:
        """Bring each tensor of the state that has a weight's shape into its memory order."""
        for weight, state in optimizer.state.items():
            if not self.has(weight) or not isinstance(state, dict):
                continue
            for name, value in state.items():
                if is_off(value, weight):
                    state[name] = in_order_of(weight, value)

    def saved(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Give a checkpoint ordinary tensors: the job as written may resume from it."""
        states = state_dict["state"]
        ordinary = {k: with_ordinary(state) for k, state in states.items()}
        return {**state_dict, "state": ordinary}

    def leave(self) -> None:
        """Bring the states into the order that the weights have now, and step aside."""
        self.on = False
        for optimizer, mine in list(self.seen.items()):
            if mine:
                self.align(optimizer)
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()


def is_off(value: Any, weight: torch.Tensor) -> bool:
    """Whether a piece of state belongs to the weight element by element, in another order."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return value.shape == weight.shape and value.stride() != weight.stride()


def in_order_of(weight: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return a copy of `value` with the strides of the weight."""
    like = torch.empty_strided(
        weight.shape, weight.stride(), dtype=value.dtype, device=value.device
    )
    return like.copy_(value)


def with_ordinary(state: Any) -> Any:
    """Return one weight's state with its tensors contiguous; as it came where they are."""
    if not isinstance(state, dict):
        return state
    return {
        name: value.contiguous()
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
        else value
        for name, value in state.items()
    }


def contiguous_in_safetensors() -> Callable[[], None]:
    """Let safetensors write weights that are not contiguous; return the way back.

    Its `save_file` refuses them, which a job would meet only at its first checkpoint. torch.save
    and libraries that save through `contiguous()` need nothing.
    """
    try:
        module = vars(import_module("safetensors.torch"))
    except ImportError:
        return lambda: None
    # 0.8 has the second name, older ones the first.
    name = next((n for n in ("_flatten", "_flatten_as_ptr") if n in module), None)
    if name is None:
        return lambda: None
    plain = module[name]

    def flatten(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(in_ordinary_order(tensors), *args, **kwargs)

    def leave() -> None:
        if module[name] is flatten:
            module[name] = plain

    module[name] = flatten
    return leave


def in_ordinary_order(tensors: Any) -> Any:
    """Return named tensors with copies of those that are channels-last; two of one memory stay so.

    safetensors refuses tensors that share memory: that it must still see.
    """
    if not isinstance(tensors, dict):
        return tensors
    copies: dict[int, torch.Tensor] = {}
    found = dict(tensors)
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            continue
        if is_last(value) and not value.is_contiguous():
            if value.data_ptr() not in copies:
                copies[value.data_ptr()] = value.contiguous()
            found[name] = copies[value.data_ptr()]
    return found
