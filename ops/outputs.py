"""Changing the tensors in whatever a module's forward returns, its structure and types kept."""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

Change = Callable[[torch.Tensor], torch.Tensor]


def to_float32(value: Any, seen: dict[int, Any]) -> Any:
    """Return `value` with each half-precision tensor in float32; see `with_tensors`."""
    return with_tensors(value, _float32, seen)


def _float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def with_tensors(value: Any, change: Change, seen: dict[int, Any]) -> Any:
    """Return `value` with `change` done to each tensor; where nothing changed, as it came.

    Args:
        value: a tensor, or tuples (named ones too), lists, mappings and dataclasses of them; the
            types are kept. Other objects are left alone.
        change: returns its tensor itself where it is to stay.
        seen: results by id, so that one tensor in two places stays one.
    """
    if isinstance(value, torch.Tensor):
        changed = seen.get(id(value))
        if changed is None:
            changed = change(value)
            if changed is not value:
                seen[id(value)] = changed
        return changed
    if isinstance(value, MutableMapping):  # before dataclasses: transformers' outputs are both
        new = {k: with_tensors(v, change, seen) for k, v in value.items()}
        return with_items(value, {k: v for k, v in new.items() if v is not value[k]})
    if isinstance(value, (tuple, list)):
        items = [with_tensors(v, change, seen) for v in value]
        if all(a is b for a, b in zip(items, value, strict=True)):
            return value
        return rebuild(value, items)
    if is_dataclass(value) and not isinstance(value, type):
        old = {f.name: getattr(value, f.name) for f in fields(value)}
        new = {k: with_tensors(v, change, seen) for k, v in old.items()}
        return with_fields(value, {k: v for k, v in new.items() if v is not old[k]})
    return value


def rebuild(value: Any, items: list[Any]) -> Any:
    """Return a sequence of the type of `value` with other items."""
    if isinstance(value, list):
        changed = copy.copy(value)
        changed[:] = items
        return changed
    return value._make(items) if hasattr(value, "_make") else type(value)(items)


def with_items(value: Any, changes: dict[Any, Any]) -> Any:
    """Return a copy of a mapping with some items replaced; the mapping itself without any."""
    if not changes:
        return value
    changed = copy.copy(value)
    for key, item in changes.items():
        changed[key] = item
    return changed


def with_fields(value: Any, changes: dict[str, Any]) -> Any:
    """Return a copy of a dataclass with some fields replaced, frozen ones and slots too."""
    if not changes:
        return value
    changed = copy.copy(value)
    for name, item in changes.items():
        object.__setattr__(changed, name, item)
    return changed
