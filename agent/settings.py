"""Applies a run's settings inside the job, stage by stage, and knows what took effect."""

from __future__ import annotations

from typing import Any

from aiak_tune.optimizations.base import Applied, NoEffectError, Settings, Stage
from aiak_tune.optimizations.catalog import CATALOG, by_name

# What a change to somebody else's objects may raise: told, and the other entries go on.
FAULTS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip


class Applier:
    """The settings of one run; an entry that fails is told, and the others go on."""

    def __init__(self, settings: Settings) -> None:
        given = {by_name[name]: params for name, params in settings.items()}
        # In the catalog's order, whatever the settings': it says who stands inside whom.
        self._settings = {entry: given[entry] for entry in CATALOG if entry in given}
        self.applied: dict[str, list[Applied]] = {}
        self.problems: dict[str, str] = {}

    def stage(self, stage: Stage, target: Any) -> None:
        """Apply what belongs to the stage to its target.

        Variables were set before the command started: here they are met again, so that what came
        of them is seen in the process.
        """
        for entry, params in self._settings.items():
            if entry.stage is not stage:
                continue
            try:
                applied = entry.apply(target, params)
            except NoEffectError as error:
                self.problems[entry.name] = str(error)
                continue
            except FAULTS as error:
                self.problems[entry.name] = f"could not be applied: {error}"
                continue
            if applied is not None:
                self.applied.setdefault(entry.name, []).append(applied)

    def effects(self) -> dict[str, str | None]:
        """Return what each entry did: None, or the problem, where nothing took effect."""
        found: dict[str, str | None] = {}
        for entry in self._settings:
            found[entry.name] = self._effect(entry.name)
        return found

    def _effect(self, name: str) -> str | None:
        try:
            texts = [a.effect() for a in self.applied.get(name, ())]
        except NoEffectError as error:
            self.problems[name] = str(error)
            return None
        except FAULTS as error:
            self.problems[name] = f"what it did cannot be told: {error}"
            return None
        return "; ".join(dict.fromkeys(t for t in texts if t)) or None

    def undo(self) -> None:
        """Put everything back, the newest first."""
        for entries in reversed(self.applied.values()):
            for applied in reversed(entries):
                applied.undo()
        self.applied.clear()
