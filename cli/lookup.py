"""Tunings and plans that a user names: by id, by file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aiak_tune.errors import NotFoundError, PlanError, StoreError, UsageError

if TYPE_CHECKING:
    from aiak_tune.api.store.repository import SqlTuningStore
    from aiak_tune.selector.results import Plan, TuningResult

LAST = "last"
PLAN_OR_ID = "a plan file, or a tuning's ID as in `aiak-tune history` (8 characters), or last"
_FILES = (".json", ".yaml", ".yml")


def find_tuning(store: SqlTuningStore, id_: str) -> TuningResult:
    """Return the tuning with this id, or the last one.

    Raises:
        NotFoundError: there is none.
        UsageError: the id fits several.
    """
    if id_ == LAST:
        tuning = next(iter(store.newest(limit=1)), None)
        remedy = "`aiak-tune tune -- python train.py` makes one; `aiak-tune history` lists them"
    else:
        # An id is written in capitals; people type it as they like.
        tuning = store.find(id_) or store.find(id_.upper())
        remedy = "`aiak-tune history` lists them; the first 8 characters of an id will do"
    if tuning is None:
        raise NotFoundError("tuning", id_, remedy)
    return tuning


def read_plan(path: Path) -> Plan:
    """Return the plan in a file; raises UsageError."""
    from aiak_tune.selector.plan import load_plan

    try:
        text = path.read_text()
    except OSError as error:
        raise UsageError(
            f"cannot read the plan {path}: {error.strerror}; `aiak-tune tune` writes one"
        ) from error
    except ValueError as error:
        raise UsageError(f"the plan {path} is no text file") from error
    return load_plan(text)


def plan_and_tuning(name: str) -> tuple[Plan, TuningResult | None]:
    """Return the plan in a file or of a tuning, and the tuning where the store here has it.

    Raises:
        UsageError: the file is no plan, or the tuning has none.
        NotFoundError: there is neither such a file nor such a tuning.
    """
    from aiak_tune.api.store import open_store

    if not (Path(name).exists() or "/" in name or name.endswith(_FILES)):
        with open_store() as store:
            return _plan_of(tuning := find_tuning(store, name)), tuning
    plan = read_plan(Path(name))
    try:
        with open_store() as store:
            return plan, store.find(plan.tuning_id)
    except StoreError:  # the plan's evidence is a help, and not what was asked for
        return plan, None


def _plan_of(tuning: TuningResult) -> Plan:
    from aiak_tune.selector.plan import dump_plan, load_plan, plan_of

    plan = plan_of(tuning)
    if plan is None:
        raise PlanError(
            f"tuning {tuning.id} has no plan, its verdict is {tuning.verdict}: "
            f"`aiak-tune show {tuning.id[:10]}` says why"
        )
    # By way of the text: a tuning of another version may have settings that this one has not.
    return load_plan(dump_plan(plan))
