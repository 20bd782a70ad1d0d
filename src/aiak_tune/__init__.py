"""aiak-tune: find out what slows a PyTorch training job down, and prove what makes it faster.

Imported inside the user's job too, so this module holds the public names and loads no layer.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["__version__", "step_done"]

__version__ = "0.1.0"

_listener: Callable[[int | None], None] | None = None  # the agent's, in a slice of the job


def step_done(samples: int | None = None) -> None:
    """Say that a training step ends here, in a loop where it cannot be told from outside.

    Does nothing unless aiak-tune started the job. There, from the first call on, steps end where
    this is called and nowhere else; call it once a step, in the process that trains.

    Args:
        samples: how many samples this rank used in the step; None leaves the count to what the
            DataLoader gave.
    """
    if _listener is not None:
        _listener(samples)
