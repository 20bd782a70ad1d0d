"""A whole job under a plan: settings applied, the model checked, then nothing of ours runs.

The hooks go once the first steps have passed; what stays is the loader's `__iter__`, so that a
loader made anew for each epoch gets its settings too.
"""

from __future__ import annotations

import functools
import json
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiak_tune.agent import facts, loaders, roots
from aiak_tune.agent.guest import guest
from aiak_tune.agent.hooks import patch
from aiak_tune.agent.ranks import process_group, rank, world_size
from aiak_tune.agent.settings import Applier
from aiak_tune.agent.spec import RunSpec
from aiak_tune.optimizations.base import Stage

SAFE_STEPS = 20  # a job that dies before has perhaps died of the plan


class WholeRun:
    """One rank of a job under a plan."""

    def __init__(self, torch: Any, spec: RunSpec, applier: Applier) -> None:
        self.applier = applier
        self._torch, self._spec = torch, spec
        self._optimizers: list[str] = []
        self._roots: dict[int, weakref.ref[Any]] = {}
        self._loaders: list[facts.LoaderKind] = []
        self._stopped: str | None = None
        self._updates = 0
        self._done = self._marked = False
        self._counted = not spec.ranks
        self._stop_search: Any = None
        self._stepped: set[int] = set()

    @property
    def began(self) -> bool:
        """Whether this process trains."""
        return bool(self._updates)

    def arm(self) -> None:
        """Install what the settings need; nothing where torch is not the plan's."""
        apart = self._other_versions()
        if apart:
            self._stopped = f"the plan was made with {apart} here: nothing of it is applied"
            self._report()
            return
        self.applier.stage(Stage.ENVIRONMENT, os.environ)
        self.applier.stage(Stage.PROCESS, self._torch)
        from torch.optim import optimizer as module

        self._remember_optimizers(module.Optimizer)
        loaders.watch_loaders(self)
        self._stop_search = roots.find_roots(self.root_found)
        # They stay, and return at once when the first steps are over: removing a hook from inside
        # a step would end torch's own loop over the hooks with an error.
        module.register_optimizer_step_pre_hook(guest(self._before_step))
        module.register_optimizer_step_post_hook(guest(self._after_step))

    def _other_versions(self) -> str | None:
        """Say which of torch and CUDA is another one, in what can turn a gain around."""
        here = {"torch": self._torch.__version__, "cuda": self._torch.version.cuda or ""}
        for name, was in self._spec.versions.items():
            now = here.get(name, "")
            if was and was.split("+")[0].split(".")[:2] != now.split("+")[0].split(".")[:2]:
                return f"{name} {was}, and it is {now or 'not there'}"
        return None

    def loader_started(self, loader: Any) -> None:
        """Apply loader settings to loaders that training may iterate, and to their like later."""
        if self._off() or not self._torch.is_grad_enabled():
            return
        known = any(kind.has(loader) for kind in self._loaders)
        if self._updates and self._loaders and not known:
            return
        if not known:
            self._loaders.append(facts.LoaderKind(loader))
        self._stage(Stage.LOADER, loader)

    def _stage(self, stage: Stage, target: Any) -> None:
        self.applier.stage(stage, target)
        if self.applier.applied and not self._marked:
            self._marked = True  # a crash from here on may be the plan's
            self._report()

    def root_found(self, called: Any, args: Any, kwargs: Any) -> None:
        """Before a root's first training forward: is it the model that the plan is for?"""
        module = facts.inside_ddp(called)
        known = self._roots.get(id(module))
        # A forward before there is an optimizer is no training yet: it shapes lazy layers, or
        # counts operations.
        if (known is not None and known() is module) or not self._optimizers:
            return
        first = not self._roots
        self._roots[id(module)] = weakref.ref(module)
        if first and not self._off():
            self._check(module, args, kwargs)
        if not self._off():
            self._stage(Stage.MODEL, module)

    def _check(self, module: Any, args: Any, kwargs: Any) -> None:
        expected = self._spec.model_fingerprint
        if expected is None:
            return
        shapes = facts.shapes_of(args, kwargs)
        if not any(expected in facts.fingerprints(module, n, shapes) for n in self._optimizers):
            self._stop(
                "the model, its optimizer or its batch is not the one that the plan was made for"
            )

    def _stop(self, why: str) -> None:
        self._stopped = f"{why}: nothing further is applied, and what was is taken back"
        self.applier.undo()
        self._report()

    def _off(self, *, steps: bool = False) -> bool:
        """Whether nothing is to be applied; looks once how many ranks there are.

        When `steps` come without a process group, there will be none.
        """
        if not self._counted and not self._stopped and (steps or process_group() is not None):
            self._counted = True
            if world_size() != self._spec.ranks:
                made_for, many = self._spec.ranks, world_size()
                self._stop(f"the plan was made for {made_for} ranks, and the job has {many}")
        return self._stopped is not None

    def _remember_optimizers(self, cls: Any) -> None:
        plain = cls.__init__
        made = self._optimizers

        @functools.wraps(plain)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            plain(self, *args, **kwargs)
            if type(self).__name__ not in made:
                made.append(type(self).__name__)

        self._forget: Callable[[], None] = patch(cls, "__init__", __init__)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._done:
            return
        if id(optimizer) not in self._stepped:
            self._stepped.add(id(optimizer))
            if not self._off(steps=True):
                self._stage(Stage.OPTIMIZER, optimizer)

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
            self._roots.clear()

    def _report(self) -> None:
        """Tell the tool how far it came and what took effect."""
        told = {
            "updates": self._updates,
            "applied": bool(self.applier.applied),
            "stopped": self._stopped,
            "effects": self.applier.effects(),
            "problems": self.applier.problems,
        }
        place = Path(self._spec.run_dir) / f"applied-{rank()}.json"
        beside = place.with_suffix(f".{os.getpid()}.tmp")
        beside.write_text(json.dumps(told))
        beside.replace(place)
