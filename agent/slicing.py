"""The slice: warm-up, counted window, profiled steps, probe, result, end.

A state machine driven by the step clock inside the training process. The counted window lies
between two device synchronisations and begins only after batches that were queued before it are
used up; nothing in it is synchronised, profiled or written but a line of progress now and then.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from aiak_tune.agent import facts
from aiak_tune.agent.evidence import Evidence
from aiak_tune.agent.profiling import Profiling
from aiak_tune.agent.records import SliceRecord, WindowRecord, write_result
from aiak_tune.agent.settings import Applier
from aiak_tune.agent.spec import RunSpec, SlicePlan
from aiak_tune.optimizations.base import Stage
from aiak_tune.profiles.clock import StepClock, StepTimes, drop_mixed

PROGRESS_EVERY_NS = 300_000_000
FEWEST_STEPS = 3
LONGEST_WARMUP = 400  # updates in which the order of several optimizers must become regular


class Slice:
    """One rank's slice; a `hooks.Listener`."""

    def __init__(self, torch: Any, spec: RunSpec, plan: SlicePlan) -> None:
        self.clock = StepClock()
        self.applier = Applier(spec.settings)
        self.evidence = Evidence(torch, plan)
        self._torch, self._spec, self._plan = torch, spec, plan
        self._run_dir = Path(spec.run_dir)
        self._phase = self._warm_up
        self.scaled = False
        self._steps: list[StepTimes] = []
        self._extra = 0
        self._seen = self._fetched = self._queued = self._skipped = 0
        self._started_ns = self._progress_ns = self._told = 0
        self._window: WindowRecord | None = None
        self._memory: int | None = None
        self._loader: Any = None
        self._profiling = Profiling(torch, self._run_dir, rank())
        self._warmup_done = 0

    # What the hooks tell.

    def loader_started(self, loader: Any) -> None:
        """Apply loader settings to what may be the training loader."""
        if self._torch.is_grad_enabled() and (
            self._loader is None or facts.same_loader(loader, self._loader)
        ):
            self.evidence.loader_seen(loader)
            self.applier.stage(Stage.LOADER, loader)

    def batch_arrived(self, iterator: Any, batch: Any) -> None:
        """Count it; remember whose it is and what it holds."""
        self._fetched += 1
        self._loader = getattr(iterator, "_aiak_loader", None)
        workers = getattr(iterator, "_num_workers", 0)
        self._queued = workers * getattr(iterator, "_prefetch_factor", 0) if workers else 0
        self.evidence.batch(batch)

    def optimizer_begins(self, optimizer: Any) -> None:
        """Apply optimizer settings at the first step."""
        if self.evidence.optimizer_seen(optimizer):
            self.applier.stage(Stage.OPTIMIZER, optimizer)

    def update_ended(self, optimizer: Any, *, ran: bool) -> None:
        """Let the phase decide what a finished step means."""
        self._skipped += not ran
        step = self.clock.end_update(id(optimizer))
        if step is not None:
            self._phase(step)

    def loss_seen(self, loss: Any) -> None:
        """Keep the loss where losses are compared."""
        self.evidence.loss(loss)

    def root_called(self, module: Any, args: Any, kwargs: Any, *, training: bool) -> None:
        """Tell training from evaluation; take a batch for the probe when it is due."""
        self.clock.forward(training=training)
        if training and self._phase == self._probe:
            self.evidence.probe_model(module, args, kwargs, self.applier)

    def root_found(self, module: Any, args: Any, kwargs: Any) -> None:
        """Before a root's first training forward: shift its start, apply model settings."""
        if self.evidence.root_seen(module, args, kwargs):
            self.applier.stage(Stage.MODEL, module)

    # The phases, each called with every step that ends in it.

    def _warm_up(self, step: StepTimes) -> None:
        self._seen += 1
        self._tell("warm-up")
        plan = self._plan
        if self._seen < plan.warmup or self._fetched <= self._queued + 1:
            return
        if self.clock.period is None and self.clock.settle() is None:
            if self._seen >= LONGEST_WARMUP:
                self._finish("irregular")
            return
        self._warmup_done = self._seen
        self.evidence.warm()
        self._synchronize()
        self._skipped = 0
        self._phase = self._count
        self.clock.restart()
        self._started_ns = perf_counter_ns()

    def _count(self, step: StepTimes) -> None:
        self._steps.append(step)
        elapsed = step.end_ns - self._started_ns
        if elapsed > self._progress_ns + PROGRESS_EVERY_NS:
            self._progress_ns = elapsed
            self._tell("counting")
        if not self._window_full(elapsed):
            return
        self._synchronize()
        self._close_window(perf_counter_ns() - self._started_ns)
        self._phase = self._profile
        if self._plan.profiled and self._profiling.start():
            self.clock.restart()
            return
        self._after_profile()

    def _window_full(self, elapsed: int) -> bool:
        plan, steps = self._plan, len(self._steps)
        enough = steps >= plan.steps and elapsed >= plan.min_window_s * 1e9
        if not enough and (elapsed < plan.max_window_s * 1e9 or steps < FEWEST_STEPS):
            return False
        # A whole number of turns of the workers: each made as many batches as the others.
        workers = self._queued and getattr(self._loader, "num_workers", 0)
        batches = sum(s.batches for s in self._steps)
        self._extra += 1
        return not workers or batches % workers == 0 or self._extra > 2 * workers

    def _close_window(self, wall_ns: int) -> None:
        kept = drop_mixed(self._steps)
        dropped = len(self._steps) - len(kept)
        if dropped:
            wall_ns -= sum(s.step_ns for s in self._steps) - sum(s.step_ns for s in kept)
        rows = [list(s.row) for s in kept]
        self._window = WindowRecord(
            wall_ns=wall_ns, steps=rows, mixed=dropped, updates_skipped=self._skipped
        )
        self._memory = facts.peak_memory(self._torch)
        self._tell("counted")

    def _profile(self, step: StepTimes) -> None:
        if self._profiling.step(mixed=step.mixed) >= self._plan.profiled:
            self._profiling.stop()
            self._after_profile()

    def _after_profile(self) -> None:
        if not self._plan.probe:
            self._finish("complete")
            return
        self._tell("probing")
        self.evidence.probing = True
        self._phase = self._probe

    def _probe(self, step: StepTimes) -> None:
        self._finish("complete")

    # The end.

    def ended_early(self) -> None:
        """The job ended by itself before the slice did: keep what there is."""
        if not self.clock.updates:
            return  # a launcher, a data worker: not a rank
        whole = self._window is not None
        if not whole and self._steps:
            self._close_window(self._steps[-1].end_ns - self._started_ns)
        self._profiling.stop()
        self._write("complete" if whole else "short")

    def _finish(self, status: str) -> None:
        self._write(status)
        self._tell("done")
        self._wait_for_ranks()
        # No user code runs after the last step: no finally, no atexit, no checkpoint.
        os._exit(0)

    def _write(self, status: str) -> None:
        effects = self.applier.effects()
        self.evidence.note(grad_scaler=self.scaled)
        warnings = [[name, text] for name, text in self.applier.problems.items()]
        record = SliceRecord(
            rank=rank(),
            world_size=world_size(),
            pid=os.getpid(),
            status=status,
            facts=self.evidence.facts(self._loader),
            environment=facts.environment_facts(self._torch),
            warmup_steps=self._warmup_done or self._seen,
            window=self._window,
            trace=self._profiling.path,
            profiled=self._profiling.steps,
            losses=self.evidence.losses(),
            late_losses=self.evidence.late_losses(),
            batch_hashes=self.evidence.hashes,
            moved=self.evidence.moved(),
            effects=effects,
            probes=self.evidence.probes,
            memory_bytes=self._memory,
            startup_s=self.evidence.startup_s,
            warnings=warnings + self._profiling.warnings,
        )
        write_result(self._run_dir, record)

    def _wait_for_ranks(self) -> None:
        """Give the other ranks a bounded time to write theirs: an early exit can end them."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if len(list(self._run_dir.glob("result-*.json"))) >= world_size():
                return
            time.sleep(0.01)

    def _synchronize(self) -> None:
        if self._torch.cuda.is_available() and self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()

    def _tell(self, phase: str) -> None:
        steps = self._steps
        wall_ns = steps[-1].end_ns - self._started_ns if steps else 0
        line = {
            "phase": phase,
            "step": self._seen + len(steps),
            "counted": len(steps),
            "mean_step_ms": wall_ns / len(steps) / 1e6 if steps else None,
            "steps_ms": [round(s.step_ns / 1e6, 3) for s in steps[self._told :]],
        }
        self._told = len(steps)
        with open(self._run_dir / f"progress-{rank()}.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")


def rank() -> int:
    """The global rank of this process, 0 alone."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many ranks the job has."""
    return int(os.environ.get("WORLD_SIZE", "1"))
