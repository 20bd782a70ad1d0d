"""Called in each process of the job when `import torch` is done: install what this run needs.

Birth is passive. Which process trains shows by the first event: an optimizer step. A process that
has none writes nothing and starts no thread.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from multiprocessing import util
from pathlib import Path
from typing import Any

from aiak_tune.agent import facts, hooks, imports, loaders, marks, profiling, roots, seeding, sights
from aiak_tune.agent.guest import GUEST, guest
from aiak_tune.agent.last_words import watch_failures
from aiak_tune.agent.process_facts import notice_choices
from aiak_tune.agent.protect import notice_resuming, redirect_saves
from aiak_tune.agent.ranks import rank
from aiak_tune.agent.settings import Applier
from aiak_tune.agent.slicing import Slice
from aiak_tune.agent.spec import SPEC_VARIABLE, RunSpec, SlicePlan
from aiak_tune.agent.whole import WholeRun
from aiak_tune.optimizations.base import Stage

WORKERS_MADE_BY = os.path.join("torch", "utils", "data", "dataloader.py")
OLDEST_TORCH = (2, 6)
ROOT_UPDATES = 3  # by then each root of a step has run; the search costs a call on every module


@guest
def arm(torch: Any) -> None:
    """Start the agent in this process; `torch` is the module just imported."""
    place = os.environ.get(SPEC_VARIABLE)
    if not place or _helper():
        return
    GUEST.run_dir = Path(place).parent  # before the specification is read: that may fail
    spec = RunSpec.load(Path(place).read_text())
    _check_version(torch.__version__)
    if spec.slice is None:
        _arm_whole(torch, spec)
    else:
        _arm_slice(torch, spec, spec.slice)


def _check_version(version: str) -> None:
    """Raise RuntimeError, which `guest` tells, where torch is older than what was tried."""
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise RuntimeError(f"torch {version} is too old, the agent takes {oldest} or later")


def _helper() -> bool:
    """Whether this is a process that never trains: the launcher, a compile worker, a tracker."""
    argv = " ".join(getattr(sys, "orig_argv", sys.argv))
    return any(
        word in argv
        for word in ("_inductor/compile_worker", "resource_tracker", "multiprocessing.forkserver")
    )


def _watch_forks(run: Slice | WholeRun) -> None:
    """Keep the hooks in a child that may be the trainer: of a launcher that forks it.

    A loader's worker never trains, nor does a child of the process that does.
    """

    @guest
    def forked() -> None:
        hooks.Thread.ident = threading.get_ident()
        if run.began or _makes_workers(sys._getframe(1)):
            GUEST.detached = True

    os.register_at_fork(after_in_child=forked)


def _makes_workers(frame: Any) -> bool:
    """Whether a DataLoader is below the frame."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(WORKERS_MADE_BY):
            return True
        frame = frame.f_back
    return False


def _arm_slice(torch: Any, spec: RunSpec, plan: SlicePlan) -> None:
    _die_with_parent()
    watch_failures(Path(spec.run_dir))
    mirror = redirect_saves(torch, Path(spec.run_dir))
    run = watch_slice(torch, spec, plan)
    # A first update may be torch.distributed.checkpoint's, which fills an optimizer by one.
    notice_resuming(torch, mirror, lambda: len(run.clock.updates) > 1)
    early = guest(run.ended_early)
    pid = os.getpid()
    atexit.register(lambda: early() if os.getpid() == pid else None)
    # A forked child of multiprocessing ends without atexit, and forgets what was to be done.
    util.register_after_fork(run, lambda _: util.Finalize(None, early, exitpriority=0))
    _watch_forks(run)


def watch_slice(torch: Any, spec: RunSpec, plan: SlicePlan) -> Slice:
    """Install all that one rank's slice needs."""
    run = Slice(torch, spec, plan)
    hooks.hide_from_dynamo(torch, sights.watch_gradients(torch, run))
    sights.watch_made(run)
    if plan.seed is not None:
        seeding.seed_all(torch, plan.seed + rank())
        _notice_seeding(torch, run)
        if plan.parity:
            run.seeding = seeding.seed_batches(torch, plan.parity, plan.seed)
    run.applier.stage(Stage.ENVIRONMENT, os.environ)
    run.applier.stage(Stage.PROCESS, torch)
    notice_choices(torch, run.evidence.note)
    if "amp" not in spec.settings:
        sights.watch_autocast(torch, lambda: run.evidence.note(amp=True))
    profiling.watch_profilers(torch, run.profiling.job_profiles)
    loaders.watch_loaders(run)
    loaders.watch_batches(run)
    hooks.watch_optimizers(run)
    hooks.watch_backward(run)
    marks.watch_marks(run)
    _search_roots(run)
    return run


def _search_roots(run: Slice) -> None:
    """Find the roots in the first steps, then watch each of them alone."""
    watch = roots.RootWatch(run.root_called, run.express)

    def on_root(called: Any, args: Any, kwargs: Any) -> None:
        run.sights.note("forward")
        if not run.sights.training():
            return
        imports.settle()
        module = facts.inside_ddp(called)
        if module is not called:
            run.evidence.note(ddp=True)
        run.root_found(module, args, kwargs)
        watch.add(module)

    stop = roots.find_roots(on_root)
    updated, marked = run.update_ended, run.step_marked
    left = ROOT_UPDATES

    def passed() -> None:
        nonlocal left
        left -= 1
        if not left:
            run.update_ended, run.step_marked = updated, marked  # type: ignore[method-assign]
            stop()

    def update_ended(optimizer: Any, *, ran: bool) -> None:
        passed()
        updated(optimizer, ran=ran)

    def step_marked(samples: int | None) -> None:
        if not run.clock.updates:  # else an update has passed
            passed()
        marked(samples)

    run.update_ended, run.step_marked = update_ended, step_marked  # type: ignore[method-assign]


def _notice_seeding(torch: Any, run: Slice) -> None:
    """Note whether the job seeds torch by itself."""
    plain = torch.manual_seed

    @functools.wraps(plain)
    def manual_seed(seed: Any) -> Any:
        run.evidence.note(seeded=True)
        return plain(seed)

    torch.manual_seed = torch.random.manual_seed = manual_seed

    def undo() -> None:
        for owner in (torch, torch.random):
            if owner.manual_seed is manual_seed:
                owner.manual_seed = plain

    GUEST.leave.append(undo)


def _arm_whole(torch: Any, spec: RunSpec) -> None:
    """The whole job under a plan: apply, check the model, and get out of the way."""
    run = WholeRun(torch, spec, Applier(spec.settings))
    hooks.hide_from_dynamo(torch)
    run.arm()
    _watch_forks(run)


def _die_with_parent() -> None:
    """Ask the kernel to end this process when its parent is gone: a killed tool leaves nobody."""
    import ctypes
    import signal

    PR_SET_PDEATHSIG = 1
    parent = os.getppid()
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
