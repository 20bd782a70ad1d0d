"""Standing around a forward must not stand in the way of what else a job does with its modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aiak_tune.ops.forwards import Around, wrap_forward

ROWS = torch.randn(5, 4)


class Doubled(Around):
    """What can be told from the forward as written."""

    def around(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Compute twice the output."""
        return 2 * forward(*args, **kwargs)


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        """Use a name of this module's globals."""
        return halved(x)


def halved(x: Tensor) -> Tensor:
    """Be found by name."""
    return x / 2


def in_a_closure() -> nn.Module:
    by = halved

    class Closed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            """Use a name of the function around it."""
            return by(x)

    return Closed()


@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 4), Scaled, in_a_closure])
@pytest.mark.parametrize("patched", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_the_job_can_script_what_is_wrapped(
    make: Callable[[], nn.Module], patched: bool, times: int
) -> None:
    module: Any = make()
    if patched:
        module.forward = module.forward
    written = module(ROWS)
    undo = [wrap_forward(module, Doubled()) for _ in range(times)]
    torch.testing.assert_close(module(ROWS), 2**times * written)
    # torch builds the method anew from the source: what is scripted computes as written.
    torch.testing.assert_close(torch.jit.script(module)(ROWS), written)
    for back in reversed(undo):
        back()
    torch.testing.assert_close(module(ROWS), written)


def test_others_of_the_class_can_be_scripted_too() -> None:
    wrapped, other = nn.Linear(4, 4), nn.Linear(4, 4)
    undo = wrap_forward(wrapped, Doubled())
    scripted: Any = torch.jit.script(nn.Sequential(other))
    torch.testing.assert_close(scripted(ROWS), other(ROWS))
    undo()
