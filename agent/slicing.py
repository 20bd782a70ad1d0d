"""The slice: warm-up, counted window, profiled steps, probe, result, end.

A state machine driven by the step clock inside the training process. The counted window lies
between two device synchronisations and begins only after batches that were queued before it are
used up; nothing in it is synchronised, profiled or written but a line of progress now and then.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

from aiak_tune.agent import facts
from aiak_tune.agent.compiling import Compiling, graphs_compiled
from aiak_tune.agent.evidence import Evidence
from aiak_tune.agent.express import Express
from aiak_tune.agent.feeding import Feed
from aiak_tune.agent.guest import GUEST
from aiak_tune.agent.joint import Joint
from aiak_tune.agent.marks import MARKS_LATE, job_marks_steps
from aiak_tune.agent.profiling import Profiling
from aiak_tune.agent.ranks import hold
from aiak_tune.agent.records import SliceRecord, WindowRecord, write_result
from aiak_tune.agent.seeding import BatchSeeding
from aiak_tune.agent.settings import Applier
from aiak_tune.agent.sights import Sights
from aiak_tune.agent.spec import RunSpec, SlicePlan
from aiak_tune.agent.telling import Telling
from aiak_tune.agent.window import closed
from aiak_tune.optimizations.base import Stage
from aiak_tune.profiles.asides import is_mixed
from aiak_tune.profiles.clock import (
    BATCH_NO_GRAD,
    FORWARD_EVAL_MODE,
    FORWARD_NO_GRAD,
    NOTHING,
    ROLLOUT,
    Asides,
    StepClock,
    StepTimes,
)

PROGRESS_EVERY_NS = 300_000_000
FEWEST_STEPS = 3
REMEMBERED = 40  # steps before the window in which rollouts are looked for
LONGEST_WARMUP = 400  # updates in which the order of several optimizers must become regular


class Slice:
    """One rank's slice; a `hooks.SliceListener`."""

    def __init__(self, torch: Any, spec: RunSpec, plan: SlicePlan) -> None:
        self.clock = StepClock()
        self.express = Express()
        GUEST.leave.append(self.express.stop)
        self._simple = True
        self._optimizer_ns: list[int] = []
        self.applier = Applier(spec.settings)
        self.evidence = Evidence(torch, plan)
        self._torch, self._spec, self._plan = torch, spec, plan
        self._run_dir = Path(spec.run_dir)
        self.joint = Joint(torch, self._run_dir)
        self._telling = Telling(self._run_dir)
        self.compiling = Compiling()
        self.sights = Sights(self._run_dir)
        self._phase = self._warm_up
        self.profiling = Profiling(torch, self._run_dir)
        self.seeding: BatchSeeding | None = None
        self._steps: list[StepTimes] = []
        self._extra = 0
        self._usual: Asides = NOTHING
        self._before: list[Asides] = []
        self._warnings: list[list[str]] = []
        self.feed = Feed()
        self._seen = self._skipped = 0
        self._started_ns = 0
        self._look_ns = 0.0
        self._window: WindowRecord | None = None
        self._memory: int | None = None
        self._warmup_done = 0

    @property
    def began(self) -> bool:
        """Whether this process trains."""
        return bool(self._seen or self.clock.updates)

    # What the hooks tell.

    def loader_started(self, loader: Any) -> None:
        """Apply loader settings to what may be the training loader.

        Which one it is shows at the first update; then only those made the same way are.
        """
        if not self._torch.is_grad_enabled():
            return
        if self.feed.kind is not None and self.clock.updates and not self.evidence.kind_of(loader):
            return
        self.evidence.loader_seen(loader)
        self.applier.stage(Stage.LOADER, loader)

    def iterator_made(self, iterator: Any, loader: Any) -> None:
        """Remember what kind of loader it belongs to, not the loader: its workers end with it."""
        iterator._aiak_kind = self.evidence.kind_of(loader)

    def batch_arrived(self, iterator: Any, batch: Any) -> None:
        """Count it; remember whose it is and what it holds."""
        if not self._torch.is_grad_enabled():
            self.clock.aside(BATCH_NO_GRAD)
            return
        self.sights.note("batch")
        self.feed.met(iterator, trained=bool(self.clock.updates))
        self.feed.fetched += 1
        if self._seen < self._plan.parity:
            self.evidence.batch(batch)

    def optimizer_begins(self, optimizer: Any) -> None:
        """Apply optimizer settings at the first step."""
        if self.evidence.optimizer_seen(optimizer):
            if not self.clock.updates and job_marks_steps():
                self.sights.note("marks")
                self.clock.mark()
            self.applier.stage(Stage.OPTIMIZER, optimizer)

    def update_ended(self, optimizer: Any, *, ran: bool) -> None:
        """Let the phase decide what a finished step means."""
        self._skipped += not ran
        step = self.clock.end_update(id(optimizer))
        if step is not None:
            self._phase(step)

    def step_marked(self, samples: int | None) -> None:
        """The job says that a step is done: what was taken for one before was none."""
        if not self.clock.marked:
            if self._window is not None:
                # What was counted is over, and cannot be counted anew.
                self._warnings = [["marks_late", MARKS_LATE]]
                return
            self.express.stop()
            self.clock.mark()
            self._seen = 0
            self._count_anew()
        self._phase(self.clock.end_marked(samples))

    def express_left(self) -> None:
        """Back to the full hooks: they find out what a step is now."""
        self.express.stop()
        self.clock.restart()

    def express_ended(self) -> None:
        """Take the steps of the window's short path, and look at them."""
        self._steps += self.express.take()
        self._look(self._steps[-1])
        self._express_on()

    def _express_on(self) -> None:
        """Say when the next look is due: for progress, or when the window may be full."""
        plan, express = self._plan, self.express
        express.look_ns = self._look_ns
        express.want = plan.steps - len(self._steps)
        if express.want <= 0:
            express.want = 1
            least = self._started_ns + plan.min_window_s * 1e9
            if self._steps[-1].end_ns < least:
                express.want, express.look_ns = sys.maxsize, min(express.look_ns, least)

    def not_simple(self) -> None:
        """Keep to the full hooks: steps lie in steps, or a scaler skips some."""
        self._simple = False

    def backward_begins(self) -> None:
        """Note it."""
        self.sights.note("backward")

    def loss_seen(self, loss: Any) -> None:
        """Keep the loss where losses are compared."""
        self.evidence.loss(loss)

    def gradient_asked(self, output: Any) -> None:
        """Take it for a loss, and a micro-batch, in a loop that never calls backward."""
        self.sights.note("gradient")
        if not self.evidence.probing:
            self.clock.gradient_asked()
            self.evidence.loss(output, asked=True)

    def scaler_used(self) -> None:
        """Note that the job scales its losses."""
        self.evidence.note(grad_scaler=True)

    def root_called(self, module: Any, args: Any, kwargs: Any) -> None:
        """Tell training from evaluation; take a batch for the probe when it is due."""
        if not self._torch.is_grad_enabled():
            self.clock.aside(ROLLOUT if module.training else FORWARD_NO_GRAD)
            return
        if not module.training:
            self.clock.aside(FORWARD_EVAL_MODE)
            if not self._usual[FORWARD_EVAL_MODE]:
                return
        if self.evidence.probing:
            self.evidence.probe_model(module, args, kwargs, self.applier)

    def root_found(self, module: Any, args: Any, kwargs: Any) -> None:
        """Before a root's first training forward: shift its start, apply model settings."""
        if self.evidence.root_seen(module, args, kwargs):
            self.applier.stage(Stage.MODEL, module)

    # The phases, each called with every step that ends in it.

    def _warm_up(self, step: StepTimes) -> None:
        self._seen += 1
        self.compiling.step()
        self._optimizer_ns = [*self._optimizer_ns[-9:], step.optimizer_ns]
        self._before = [*self._before[-REMEMBERED:], step.asides]
        plan = self._plan
        several = self.joint.passed(self._seen, max(plan.warmup, plan.parity))
        self._tell("warm-up")
        if self._seen == plan.parity:
            self.evidence.compared()
            self.compiling.draws_change()
            if self.seeding is not None:
                self.seeding.on = False
        if self._seen < self.joint.least or not (several or self.feed.used_up(self._seen)):
            return
        if self.clock.period is None and self.clock.settle() is None:
            if self._seen >= LONGEST_WARMUP:
                self._finish("irregular")
            return
        if not self.clock.between_steps:
            return
        settled = self.compiling.settled()
        if several:
            self._plan = self.joint.meet(self._seen, step, self.feed, plan, settled=settled)
            settled = self.joint.opens(self._seen)
        if not settled:
            return
        self.compiling.window_opens()
        self._warmup_done = self._seen
        self.evidence.warm()
        facts.synchronize(self._torch)
        self._skipped = 0
        self._phase = self._count
        self._started_ns = self.clock.restart()
        self._look_next(self._started_ns)
        if self._simple and self.clock.period == 1 and not self.clock.marked:
            self.express.start(self._started_ns, self.clock.updates[-1], step.micro_batches)
            self._express_on()

    def _count(self, step: StepTimes) -> None:
        if not self.clock.regular:
            self._start_over()
            return
        self._steps.append(step)
        self._look(step)

    def _look(self, step: StepTimes) -> None:
        """See whether the window is full; tell the progress now and then."""
        if step.end_ns >= self._look_ns:
            self._look_next(step.end_ns)
            self._tell("counting")
        if not self._window_full(step.end_ns - self._started_ns):
            return
        self.express.stop()
        facts.synchronize(self._torch)
        self._close_window(perf_counter_ns() - self._started_ns)
        self._phase = self._profile
        if self._plan.profiled and (self.profiling.start() or self.joint.agreement is not None):
            self.clock.restart()
            return
        self._after_profile()

    def _look_next(self, now: int) -> None:
        latest = self._started_ns + self._plan.max_window_s * 1e9
        self._look_ns = min(now + PROGRESS_EVERY_NS, latest)

    def _start_over(self) -> None:
        """Another optimizer came in: what a step is must be found out anew."""
        self._seen += len(self._steps) + 1
        self._count_anew()
        if self.clock.settle() is None and self._seen >= LONGEST_WARMUP:
            self._finish("irregular")

    def _count_anew(self) -> None:
        self._steps.clear()
        self._telling.start_over()
        self._extra = 0
        self.joint.part(self._seen)
        self._phase = self._warm_up

    def _window_full(self, elapsed: int) -> bool:
        plan, steps = self._plan, len(self._steps)
        enough = steps >= plan.steps and elapsed >= plan.min_window_s * 1e9
        if not enough and (elapsed < plan.max_window_s * 1e9 or steps < FEWEST_STEPS):
            return False
        if self.joint.agreement is not None:
            return True
        # A whole number of turns of the workers: each made as many batches as the others.
        workers = self.feed.workers
        batches = sum(s.batches for s in self._steps)
        self._extra += 1
        return not workers or batches % workers == 0 or self._extra > 2 * workers

    def _close_window(self, wall_ns: int) -> None:
        self.compiling.window_closed()
        self._window, self._usual = closed(self._steps, self._before, wall_ns, self._skipped)
        self._memory = facts.peak_memory(self._torch)
        self.evidence.window_closed(len(self._steps))
        self._tell("counted")

    def _profile(self, step: StepTimes) -> None:
        turn = (self._window.rollouts if self._window else 0) or 1
        wanted = -(-self._plan.profiled // turn) * turn  # rollouts with all their updates
        self.profiling.step(mixed=is_mixed(step, self._usual))
        if self.profiling.over(wanted, exactly=self.joint.profiled):
            self.profiling.stop(self.joint.rank)
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
        if not self._seen:
            return  # a launcher, a data worker: not a rank
        whole = self._window is not None
        self._steps += self.express.take() if self.express.on else []
        if not whole and self._steps:
            self._close_window(self._steps[-1].end_ns - self._started_ns)
        self.profiling.stop(self.joint.rank)
        self._write("complete" if whole else "short")

    def _finish(self, status: str) -> None:
        self._write(status)
        self.joint.end()
        self._tell("done")
        if self._spec.supervised:
            hold()
        # No user code runs after the last step: no finally, no atexit, no checkpoint.
        os._exit(0)

    def _write(self, status: str) -> None:
        effects = self.applier.effects()
        warnings = [[name, text] for name, text in self.applier.problems.items()]
        warnings += self.profiling.warnings + self.compiling.warnings()
        record = SliceRecord(
            rank=self.joint.rank,
            world_size=self.joint.ranks,
            here=self.joint.here,
            nodes=self.joint.nodes,
            pid=os.getpid(),
            status=status,
            facts=self._facts(),
            environment=facts.environment_facts(self._torch),
            warmup_steps=self._warmup_done or self._seen,
            window=self._window,
            trace=self.profiling.path,
            profiled=self.profiling.steps,
            losses=self.evidence.losses(),
            late_losses=self.evidence.late_losses(),
            batch_hashes=self.evidence.hashes,
            moved=self.evidence.moved(),
            effects=effects,
            probes=self.evidence.probes,
            memory_bytes=self._memory,
            startup_s=self.evidence.startup_s,
            warnings=warnings + self._warnings + self.joint.warnings(),
        )
        write_result(self._run_dir, record)

    def _facts(self) -> dict[str, Any]:
        found = self.evidence.facts(self.feed.kind)
        if not self._spec.settings:  # a compiled loss, step or optimizer shows in no module
            found["compiled"] = bool(found.get("compiled") or graphs_compiled())
        if "optimizer_facts" in found and self._optimizer_ns:
            # Of the warm-up's later steps: the window's short path does not time it.
            found["optimizer_facts"]["step_ms"] = median(self._optimizer_ns) / 1e6
        return found

    def _tell(self, phase: str) -> None:
        self._telling.tell(self.joint.rank, phase, self._seen, self._steps, self._started_ns)
