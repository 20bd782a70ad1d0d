"""Autocast around a module's forward, what it returns in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aiak_tune.ops.forwards import Around
from aiak_tune.ops.outputs import to_float32


class Autocast(Around):
    """One root module under autocast; the job's own autocast wins."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.device = device
        self.dtype = dtype

    def idle(self) -> bool:
        """Whether the job computes under its own autocast here."""
        return torch.is_autocast_enabled(self.device)

    def around(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call `forward` under autocast, and cast what it returns back."""
        with torch.autocast(self.device, dtype=self.dtype):
            outputs = forward(*args, **kwargs)
        return to_float32(outputs, {})

    def effect(self) -> str | None:
        """Say how often the forward ran under autocast; None when it never did."""
        seen = self.seen()
        return seen and f"{seen} under autocast"
