"""What the user asked for: the command and the limits of a profile or a tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiak_tune.agent.spec import SlicePlan
from aiak_tune.errors import UsageError
from aiak_tune.optimizations.base import Numerics, Optimization
from aiak_tune.selector.nodes import Rendezvous


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One tuning as asked for. `trials` counts the baseline; seconds where a name ends in `_s`.

    `rendezvous`: where the tools of several nodes meet. `force_confirmation` confirms the best
    trial however it did: for tests of the judgement.
    """

    command: tuple[str, ...]
    trials: int = 10
    time_budget_s: float | None = None
    numerics: Numerics = Numerics.CHANGING
    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    slice: SlicePlan = field(default_factory=SlicePlan)
    min_pairs: int = 3
    max_pairs: int = 8
    runs_dir: Path | None = None
    keep_logs: bool = False
    resume: bool = False
    resume_id: str | None = None
    force_confirmation: bool = False
    wait: bool = True
    workdir_copy: bool = False
    rendezvous: Rendezvous | None = None
    seed: int = 0


def chosen(catalog: Sequence[Optimization], request: Request) -> tuple[Optimization, ...]:
    """Return the entries that `--only` and `--exclude` leave.

    Raises:
        UsageError: a name that is not in the catalog.
    """
    known = {entry.name for entry in catalog}
    unknown = sorted({*request.only, *request.exclude} - known)
    if unknown:
        raise UsageError(
            f"no optimization is called {unknown[0]!r}: `aiak-tune catalog` lists "
            f"{', '.join(sorted(known))}"
        )
    left = tuple(
        entry
        for entry in catalog
        if (not request.only or entry.name in request.only) and entry.name not in request.exclude
    )
    if not left:
        raise UsageError("--only and --exclude leave no optimization to try")
    return left
