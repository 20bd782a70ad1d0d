"""A whole job under a plan: settings applied, the model checked, then nothing of ours runs.

The hooks go once the first steps have passed; what stays is the loader's `__iter__`, so that a
loader made anew for each epoch gets its settings too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from aiak_tune.agent import facts, hooks
from aiak_tune.agent.guest import GUEST, guest
from aiak_tune.agent.settings import Applier
from aiak_tune.agent.slicing import rank
from aiak_tune.agent.spec import RunSpec
from aiak_tune.optimizations.base import Stage

SAFE_STEPS = 20  # a job that dies before has perhaps died of the plan


class WholeRun:
    """One rank of a job under a plan."""

    def __init__(self, torch: Any, spec: RunSpec, applier: Applier) -> None:
        self.applier = applier
        self._torch, self._spec = torch, spec
        self._optimizers: list[Any] = []
        self._roots: dict[int, Any] = {}
        self._loader: Any = None
        self._stopped: str | None = None
        self._updates = 0
        self._done = False
        self._stop_search: Any = None
        self._stepped: set[int] = set()

    def arm(self) -> None:
        """Install what the settings need."""
        from torch.optim import optimizer as module

        self._remember_optimizers(module.Optimizer)
        hooks.watch_loaders(self, timed=False)  # type: ignore[arg-type]
        self._stop_search = hooks.find_roots(self.root_found)
        # They stay, and return at once when the first steps are over: removing a hook from inside
        # a step would end torch's own loop over the hooks with an error.
        module.register_optimizer_step_pre_hook(guest(self._before_step))
        module.register_optimizer_step_post_hook(guest(self._after_step))

    scaled = False

    def loader_started(self, loader: Any) -> None:
        """Apply loader settings to the loader that training iterates."""
        if self._stopped or not self._torch.is_grad_enabled():
            return
        if self._updates and self._loader is not None:
            if not facts.same_loader(loader, self._loader):
                return
        self._loader = loader
        self.applier.stage(Stage.LOADER, loader)

    def root_found(self, module: Any, args: Any, kwargs: Any) -> None:
        """Before a root's first training forward: is it the model that the plan is for?"""
        if id(module) in self._roots:
            return
        first = not self._roots
        self._roots[id(module)] = module
        if first:
            self._check(module, args, kwargs)
        if not self._stopped:
            self.applier.stage(Stage.MODEL, module)

    def _check(self, module: Any, args: Any, kwargs: Any) -> None:
        expected = self._spec.model_fingerprint
        if expected is None:
            return
        names = [type(o).__name__ for o in self._optimizers] or [""]
        shapes = facts.shapes_of(args, kwargs)
        if not any(expected in facts.fingerprints(module, n, shapes) for n in names):
            self._stopped = (
                "the model, its optimizer or its batch is not the one that the plan was made for: "
                "nothing further is applied"
            )
            self._report()

    def _remember_optimizers(self, cls: Any) -> None:
        plain = cls.__init__
        made = self._optimizers

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            plain(self, *args, **kwargs)
            made.append(self)

        cls.__init__ = __init__
        GUEST.leave.append(lambda: setattr(cls, "__init__", plain))
        self._forget = lambda: setattr(cls, "__init__", plain)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._done:
            return
        if id(optimizer) not in self._stepped:
            self._stepped.add(id(optimizer))
            if not self._stopped:
                self.applier.stage(Stage.OPTIMIZER, optimizer)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._done:
            return
        self._updates += 1
        if self._updates == 3:
            self._stop_search()
        if self._updates >= SAFE_STEPS:
            self._done = True
            self._report()
            self._forget()
            self._optimizers.clear()
            self._roots.clear()

    def _report(self) -> None:
        """Tell the tool how far it came and what took effect."""
        told = {
            "updates": self._updates,
            "stopped": self._stopped,
            "effects": self.applier.effects(),
            "problems": self.applier.problems,
        }
        place = Path(self._spec.run_dir) / f"applied-{rank()}.json"
        beside = place.with_suffix(f".{os.getpid()}.tmp")
        beside.write_text(json.dumps(told))
        beside.replace(place)
