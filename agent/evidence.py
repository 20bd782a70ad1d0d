"""What a slice notes of the job: facts, losses, batches, moved weights, the probe's answers."""

from __future__ import annotations

import hashlib
import math
import os
import sys
import time
from collections import deque
from typing import Any

from aiak_tune.agent import facts, probe
from aiak_tune.agent.process_facts import memory_asked, process_facts
from aiak_tune.agent.records import ProbeRecord
from aiak_tune.agent.seeding import disturb
from aiak_tune.agent.settings import Applier
from aiak_tune.agent.spec import SlicePlan
from aiak_tune.ops.draws import Draws
from aiak_tune.optimizations.compile import is_compiled

WATCHED_TENSORS, WATCHED_VALUES = 8, 65_536
HASHED_VALUES = 4096


class Evidence:
    """Fed by the slice; everything is read from the device only when the slice is over."""

    def __init__(self, torch: Any, plan: SlicePlan) -> None:
        self._torch, self._plan = torch, plan
        self._keep_losses = Draws.as_plain = plan.parity > 0
        self._asked = False
        self._losses: list[Any] = []
        self._late: deque[Any] = deque(maxlen=8)
        self._roots: dict[int, Any] = {}
        self._optimizers: dict[int, Any] = {}
        self._shapes: tuple[tuple[int, ...], ...] = ()
        self._vary = False
        self._layout: dict[str, Any] = {}
        self._watched: list[tuple[Any, Any]] = []
        self._disturbed: set[int] = set()
        self._probed: set[int] = set()
        self._loaders: list[tuple[facts.LoaderKind, dict[str, Any]]] = []
        self._batch_bytes: int | None = None
        self._batch_device: str | None = None
        self._seen: dict[str, Any] = {"seeded": False, "amp": False, "grad_scaler": False}
        self.hashes: list[str] = []
        self.probes: list[ProbeRecord] = []
        self.probing = False
        self.startup_s: float | None = None
        self._memory_asked: dict[str, int | None] = {}

    # What the slice tells.

    def loader_seen(self, loader: Any) -> None:
        """Note a loader as the job made it, before settings change it."""
        if self.kind_of(loader) is None:
            self._loaders.append((facts.LoaderKind(loader), facts.loader_facts(loader)))

    def kind_of(self, loader: Any) -> facts.LoaderKind | None:
        """Return the kind of a loader that was seen, or of one made the same way."""
        return next((kind for kind, _ in self._loaders if kind.has(loader)), None)

    def batch(self, batch: Any) -> None:
        """Hash the first batches: with the same seeds two runs must see the same ones."""
        if len(self.hashes) >= self._plan.parity:
            return
        tensors = facts.tensors_in(batch)
        self._batch_bytes = sum(t.numel() * t.element_size() for t in tensors)
        self._batch_device = tensors[0].device.type if tensors else None
        digest = hashlib.blake2b(digest_size=8)
        for tensor in tensors:
            digest.update(_few_values(tensor).encode())
        self.hashes.append(digest.hexdigest())

    def optimizer_seen(self, optimizer: Any) -> bool:
        """Note an optimizer; True the first time it steps."""
        if self.probing and id(optimizer) not in self._probed:
            self._probed.add(id(optimizer))
            answer = probe.optimizer_probe(self._torch, optimizer)
            if answer is not None:
                self.probes.append(answer)
        if id(optimizer) in self._optimizers:
            return False
        self._optimizers[id(optimizer)] = facts.optimizer_facts(optimizer), type(optimizer).__name__
        return True

    def loss(self, loss: Any, *, asked: bool = False) -> None:
        """Keep a copy of the loss, read at the end so that nothing waits for the device.

        `asked`: by torch.autograd.grad, which is something else in a job that calls backward (a
        gradient penalty, an inner loop).
        """
        if asked != self._asked:
            if asked and (self._losses or self._late):
                return
            self._asked = asked
            self._losses.clear()
            self._late.clear()
        if self._keep_losses:
            self._losses.append(loss.detach().clone())
        else:
            self._late.append(loss.detach())

    def compared(self) -> None:
        """The steps whose losses are compared are over: the same number in every run."""
        self._keep_losses = Draws.as_plain = False

    def warm(self) -> None:
        """The counted window begins."""
        self.startup_s = time.time() - _process_start()
        self._memory_asked = memory_asked()

    def window_closed(self, steps: int) -> None:
        """The counted window ends: note how much memory a step of it asked for anew."""
        for name, now in memory_asked().items():
            before = self._memory_asked.get(name)
            if now is not None and before is not None and steps:
                self.note(**{name: (now - before) / steps})

    def root_seen(self, module: Any, args: Any, kwargs: Any) -> bool:
        """Note a root's training call; True the first time, when its start was shifted."""
        shapes = facts.shapes_of(args, kwargs)
        if id(module) in self._roots:
            self._vary |= module is next(iter(self._roots.values())) and shapes != self._shapes
            return False
        self._roots[id(module)] = module
        if len(self._roots) == 1:
            self._shapes = shapes
            self._layout = facts.convolution_facts(module)  # before settings change it
            self._seen["amp"] |= self._autocast_on()
            self._seen["compiled"] = is_compiled(module)
        plan = self._plan
        if plan.disturb:
            disturb(self._torch, module, plan.disturb, plan.disturb_seed, self._disturbed)
        if len(self._roots) == 1:
            self._watch(module)  # behind the disturbance, which is no training
        return True

    def note(self, **seen: Any) -> None:
        """Note a fact that a hook saw: seeded, grad_scaler."""
        self._seen |= seen

    def probe_model(self, module: Any, args: Any, kwargs: Any, applier: Applier) -> None:
        """Compare the changed module with the plain one on this batch, once each root."""
        if id(module) in self._probed:
            return
        self._probed.add(id(module))
        plain = [a.plain for group in applier.applied.values() for a in group if a.plain]
        if plain:
            self.probes.append(probe.model_probe(self._torch, module, args, kwargs, plain))

    # What the record asks.

    def facts(self, loader: facts.LoaderKind | None) -> dict[str, Any]:
        """Return the job's facts in the document's words; `loader` is the training one's kind."""
        found: dict[str, Any] = process_facts(self._torch) | self._seen
        if self._roots:
            root = next(iter(self._roots.values()))
            found["model"] = facts.model_facts(root) | self._layout
            found.setdefault("ddp", type(root).__name__ == "DistributedDataParallel")
            found["batch_shapes"] = [list(s) for s in self._shapes]
            found["shapes_vary"] = self._vary
            found["dtype"] = _dtype(root)
        if self._optimizers:
            names = [name for _, name in self._optimizers.values()]
            found["optimizer"] = "+".join(dict.fromkeys(names))
            found["optimizer_facts"] = next(iter(self._optimizers.values()))[0]
            if self._roots:
                both = facts.fingerprints(root, names[0], self._shapes)
                found["model_fingerprint"] = both[self._vary]
        made = [told for kind, told in self._loaders if kind is loader]
        if made:
            found["loader"] = made[0] | {
                "batch_bytes": self._batch_bytes,
                "on_device": self._batch_device not in (None, "cpu"),
            }
        return found

    def losses(self) -> list[float | None]:
        """Return the first losses, a value a micro-batch; None where it was not finite."""
        return [_number(t) for t in self._losses]

    def late_losses(self) -> list[float | None]:
        """Return some of the last losses of the slice."""
        return [_number(t) for t in self._late]

    def moved(self) -> bool | None:
        """Whether any watched weight changed; None when none was watched."""
        if not self._watched:
            return None
        now = ((facts.local(p.detach()), before) for p, before in self._watched)
        return any(not self._torch.equal(own, before) for own, before in now)

    def _watch(self, module: Any) -> None:
        trainable = [p for p in module.parameters() if p.requires_grad]
        small = [p for p in trainable if p.numel() <= WATCHED_VALUES] or trainable[:1]
        watched = small[:WATCHED_TENSORS]
        self._watched = [(p, facts.local(p.detach()).clone()) for p in watched]

    def _autocast_on(self) -> bool:
        torch = self._torch
        return bool(torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"))


def _few_values(tensor: Any) -> str:
    """Some of a tensor's values as text; its type alone where it cannot be flattened.

    A subclass's own operators are code of the job's (MONAI's MetaTensor wants an index for each
    of its dimensions): the values are read as a plain tensor's, and what fails may fail anyhow.
    """
    torch = sys.modules["torch"]
    try:
        flat = tensor.detach().as_subclass(torch.Tensor).reshape(-1)
        few = flat[:: max(1, flat.numel() // HASHED_VALUES)]
        # As float32: bfloat16 has no numpy twin, and this is for telling apart, not for sums.
        return repr((few if few.is_complex() else few.float()).cpu().tolist())
    except Exception:  # sparse, nested, a wrapper without storage
        return repr(type(tensor))


def _number(tensor: Any) -> float | None:
    value = float(tensor)
    return value if math.isfinite(value) else None


def _dtype(module: Any) -> str | None:
    counts: dict[str, int] = {}
    for p in module.parameters():
        if p.is_floating_point():
            counts[str(p.dtype)] = counts.get(str(p.dtype), 0) + p.numel()
    return max(counts, key=lambda k: counts[k]).removeprefix("torch.") if counts else None


def _process_start() -> float:
    """Seconds since the epoch at which this process began, from /proc; now where there is none."""
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rsplit(")", 1)[1].split()[19])
        with open("/proc/uptime") as file:
            uptime = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return time.time()
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
