"""The catalog's contract. Runs in the job too: standard library only.

Order of calls for one entry: the tool asks `check` with a profile's facts and puts what fits into
the search; in a trial or a run the agent calls `apply` once with the stage's target, in `Stage`
order; after the slice it asks `effect`; `undo` puts everything back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Protocol

from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import WorkloadProfile

Scalar = bool | int | float | str
Params = Mapping[str, Scalar]
Settings = Mapping[str, Params]  # {optimization: {parameter: value}}; {} is the job as written
Space = Mapping[str, tuple[Scalar, ...]]
Undo = Callable[[], None]


class NoEffectError(Exception):
    """Raised by `apply` or `effect` where nothing came of it and there is a reason to tell."""


class Stage(str, Enum):
    """When an entry is applied, and to what (DESIGN.md section 8)."""

    ENVIRONMENT = "environment"
    PROCESS = "process"
    LOADER = "loader"
    MODEL = "model"
    PARALLEL = "parallel"
    OPTIMIZER = "optimizer"
    STEP = "step"


class Numerics(str, Enum):
    """What an entry may change in the results; ordered by how far it goes."""

    LOSSLESS = "lossless"
    CHANGING = "changing"
    CONVERGENCE = "convergence"

    @property
    def reach(self) -> int:
        """0 for lossless, 1 for changing, 2 for convergence."""
        return list(Numerics).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`check`'s answer.

    `bound`: the most it could gain where the entry knows better than Amdahl's law on its
    categories; `space`: the values that make sense here, the best guess first.
    """

    fits: bool
    reason: str
    bound: float | None = None
    space: Space = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What `apply` did: the way back, what really took effect, and the plain computation beside it.

    `effect` returns a short text of what happened since, or None when nothing did: the trial is
    then `failed: no_effect`. `plain`, where the entry changes a computation, is a context in which
    the target computes as written: the parity gate compares the two on the same batch.
    """

    undo: Undo
    effect: Callable[[], str | None]
    plain: Callable[[], AbstractContextManager[object]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One profile and whether the entry fits it; the suite runs every entry's own examples."""

    profile: WorkloadProfile
    fits: bool


class Optimization(Protocol):
    """One catalog entry: the tool calls `check`, then each rank `apply`, in `Stage` order."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for `aiak-tune catalog`
    stage: ClassVar[Stage]
    level: ClassVar[int]  # 0: unmodified command, 1: the accelerate line, 2: accelerate_step
    addresses: ClassVar[frozenset[Category]]
    space: ClassVar[Space]
    conflicts: ClassVar[frozenset[str]]
    examples: ClassVar[tuple[Example, ...]]

    def numerics(self, profile: WorkloadProfile, params: Params) -> Numerics:
        """Return the numerics class these parameters have on this job."""
        ...

    def check(self, profile: WorkloadProfile) -> Finding:
        """Judge by the facts alone: no device, no file, no clock."""
        ...

    def apply(self, target: Any, params: Params) -> Applied | None:
        """Change `target`, what the stage hands over; None when nothing changed."""
        ...

    def by_hand(self, params: Params) -> str:
        """Return the lines that a person writes to get the same without the tool.

        Python, imports first, that changes `model`, `optimizer` and `loader` in place: it stands
        where all three are made and before the first step. At the environment stage: lines of
        `export NAME=value` for a shell.
        """
        ...
