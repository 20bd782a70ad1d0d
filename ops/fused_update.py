"""Switching an optimizer of torch to its fused implementation after its construction, and back."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

# Class → the operator that its fused implementation calls.
OPERATORS = {
    "Adam": "_fused_adam_",
    "AdamW": "_fused_adamw_",
    "SGD": "_fused_sgd_",
    "Adagrad": "_fused_adagrad_",
}
HALVES = (torch.float16, torch.bfloat16)
DTYPES = (*HALVES, torch.float32, torch.float64)
# On the CPU, fused SGD of 2.13 leaves whole vectors of half-precision parameters as they are
# (pytorch#191763); Adagrad's kernel was mended with it. Those two are left alone there.
HALF_ON_CPU = ("_fused_adam_", "_fused_adamw_")
# Attributes of the optimizer that torch's constructor, or its first fused step, sets.
MARKS = ("_step_supports_amp_scaling", "_need_device_dtype_check_for_fused")


def operator_of(optimizer: Any) -> str:
    """Return the name of the operator in torch that the fused update of this optimizer calls."""
    if optimizer.defaults.get("decoupled_weight_decay"):
        return OPERATORS["AdamW"]
    return OPERATORS[type(optimizer).__name__]


def can_fuse(optimizer: Any, group: dict[str, Any]) -> bool:
    """Whether the fused kernel computes this group as the plain code does, now and later."""
    params = group["params"]
    kinds = {p.device.type for p in params}
    if len(kinds) != 1 or group.get("differentiable") or group.get("capturable"):
        return False
    operator, key = operator_of(optimizer), kinds.pop().upper()
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operator}", key):
        return False
    if type(optimizer).__name__ == "Adagrad" and key != "CPU":
        return False  # the CUDA kernel is there in 2.11, and the class still refuses it at a step
    for p in params:
        # DTensor and other subclasses of tensors are not tried yet.
        if type(p) not in (torch.Tensor, torch.nn.Parameter):
            return False
        if p.dtype in HALVES and p.device.type == "cpu" and operator not in HALF_ON_CPU:
            return False
        if p.dtype not in DTYPES or (p.grad is not None and p.grad.layout is not torch.strided):
            return False
    return not group.get("momentum") or has_all_momentum(optimizer, group)


def has_all_momentum(optimizer: Any, group: dict[str, Any]) -> bool:
    """Whether each parameter has its momentum buffer after the coming step.

    torch's fused SGD raises TypeError when a parameter gets its first gradient later than the
    others of its group (seen on 2.13): a branch not taken yet, a layer to be unfrozen.
    """
    return all(
        p.grad is not None or optimizer.state.get(p, {}).get("momentum_buffer") is not None
        for p in group["params"]
    )


def move_steps(optimizer: Any, group: dict[str, Any], *, fused: bool) -> None:
    """Put the `step` counters of a group where its implementation expects them."""
    wide = torch.get_default_dtype() == torch.float64
    for p in group["params"]:
        state = optimizer.state.get(p)
        if not state or "step" not in state:
            continue
        device = p.device if fused else "cpu"
        dtype = torch.float64 if wide and not fused else torch.float32
        state["step"] = torch.as_tensor(state["step"]).to(device=device, dtype=dtype)


class Fusion:
    """One optimizer's switch to fused, what it was before, and whether the kernel ran."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.flags = [flags_of(group) for group in optimizer.param_groups]
        self.defaults = flags_of(optimizer.defaults)
        self.marks = {m: vars(optimizer)[m] for m in MARKS if m in vars(optimizer)}
        self.witness = Witness(optimizer)

    def switch(self) -> bool:
        """Flip the flags of each group that can take it; False when none can."""
        optimizer = self.optimizer
        self.restore_flags()
        groups = [g for g in optimizer.param_groups if can_fuse(optimizer, g)]
        for group in groups:
            group.update(fused=True, foreach=False)
            move_steps(optimizer, group, fused=True)
        # With every group fused, one added later is too, and GradScaler may hand its scale to
        # the kernel; a plain group would raise on it. Momentum: see `has_all_momentum`.
        momentum = any(g.get("momentum") for g in optimizer.param_groups)
        if len(groups) == len(optimizer.param_groups) and not momentum:
            optimizer.defaults.update(fused=True, foreach=False)
            optimizer._step_supports_amp_scaling = True
        return bool(groups)

    def restore_flags(self) -> None:
        """Put flags, marks and `step` counters back; a group that came later gets the defaults."""
        optimizer = self.optimizer
        for i, group in enumerate(optimizer.param_groups):
            if group.get("fused"):
                move_steps(optimizer, group, fused=False)
            group.update(self.flags[i] if i < len(self.flags) else self.defaults)
        optimizer.defaults.update(self.defaults)
        for mark in MARKS:
            vars(optimizer).pop(mark, None)
        vars(optimizer).update(self.marks)

    def restore(self) -> None:
        """Undo everything."""
        self.witness.leave()
        self.restore_flags()

    def effect(self) -> str | None:
        """Say how many tensors one fused call updates; None when none was seen or flags fell."""
        on = sum(bool(g.get("fused")) for g in self.optimizer.param_groups)
        if not on or not self.witness.tensors:
            return None
        return f"one fused call updates {self.witness.tensors} tensors, {on} parameter groups fused"


def flags_of(group: dict[str, Any]) -> dict[str, Any]:
    """Return the two flags that choose an implementation."""
    return {"fused": group.get("fused"), "foreach": group.get("foreach")}


class Witness:
    """Sees torch's fused operator work on a parameter of one optimizer, then steps aside."""

    def __init__(self, optimizer: Any) -> None:
        self.owner = weakref.ref(optimizer)
        self.operator = operator_of(optimizer)
        self.tensors = 0
        self.watched: Callable[..., Any] | None = None
        self.original: Any = None

    def watch(self) -> None:
        """Stand before the operator until it has been called for the owner."""
        original = self.original = getattr(torch, self.operator)

        def watched(params: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(params, *args, **kwargs)
            self.note(params)
            return result

        self.watched = watched
        setattr(torch, self.operator, watched)

    def note(self, params: Any) -> None:
        """Count the call if it was the owner's; once is enough."""
        owner = self.owner()
        if owner is None or self.tensors or not params:
            return
        if any(p is params[0] for group in owner.param_groups for p in group["params"]):
            self.tensors = len(params)
            self.leave()

    def leave(self) -> None:
        """Put the operator back, unless somebody has put something before it since."""
        if self.watched is not None and getattr(torch, self.operator) is self.watched:
            setattr(torch, self.operator, self.original)
