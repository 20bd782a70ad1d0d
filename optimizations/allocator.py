"""Allocator: memory that was used once is kept and used again, in place of asking for it anew."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from functools import partial
from typing import Any

from aiak_tune.optimizations.base import (
    Applied,
    Example,
    Finding,
    NoEffectError,
    Numerics,
    Optimization,
    Params,
    Stage,
    Undo,
)
from aiak_tune.optimizations.examples import ON_CPU, PLAIN
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.hardware import MALLOCS, preloadable
from aiak_tune.profiles.workload import WorkloadProfile

EXPANDABLE, KEPT_HEAP = "expandable_segments", "kept_heap"
# Every torch from 2.6 on reads this one; 2.9 does not heed its successor PYTORCH_ALLOC_CONF.
ON_GPU: Mapping[str, str] = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
# glibc gives blocks above 32 MiB at most back to the system, which hands out zeroed pages anew.
KEEP: Mapping[str, str] = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
# By itself jemalloc gives back large blocks at once, and others after ten seconds.
JEMALLOC = {"MALLOC_CONF": "oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1"}
GPU_VARIABLES = (
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
)  # fmt: skip
CPU_VARIABLES = (
    "LD_PRELOAD", *KEEP, "MALLOC_MMAP_THRESHOLD_", "MALLOC_CONF", "GLIBC_TUNABLES",
)  # fmt: skip
# Far above what a page anew was seen to cost (8 to 11 us in a loaded virtual machine).
FAULT_MS_AT_MOST = 0.05
MOST = 16.0


def _job(profile: WorkloadProfile, **changes: Any) -> WorkloadProfile:
    return replace(profile, job=replace(profile.job, **changes))


class Allocator(Optimization):
    """Set variables that the allocators read when the process starts."""

    name = "allocator"
    summary = "allocators that keep memory: torch's on a GPU, malloc on a CPU"
    stage = Stage.ENVIRONMENT
    level = 0
    # Pages are touched wherever memory is: in operators, between them, in a loader's batches.
    addresses = frozenset({Category.COMPUTE, Category.GAP, Category.DATA_WAIT})
    space = {"use": (EXPANDABLE, KEPT_HEAP, *MALLOCS)}
    conflicts = frozenset[str]()
    examples = (
        Example(profile=_job(PLAIN, device_requests=3.0), fits=True),
        Example(profile=_job(PLAIN, device_requests=0.0), fits=False),
        Example(profile=PLAIN, fits=False),
        Example(profile=_job(ON_CPU, page_faults=9000.0), fits=True),
        Example(profile=_job(ON_CPU, page_faults=2.0), fits=False),
        Example(
            profile=_job(ON_CPU, page_faults=9000.0, allocator_by="LD_PRELOAD=libjemalloc.so.2"),
            fits=False,
        ),
    )

    def numerics(self, profile: WorkloadProfile, params: Params) -> Numerics:
        """Where a tensor lies changes nothing that is computed."""
        return Numerics.LOSSLESS

    def check(self, profile: WorkloadProfile) -> Finding:
        """Fit jobs that still ask for memory in each step, where nobody chose their allocator."""
        job = profile.job
        if job.model is None:
            return Finding(fits=False, reason="no model was seen to train")
        if job.allocator_by is not None:
            return Finding(fits=False, reason=f"the job's allocator was chosen: {job.allocator_by}")
        return on_gpu(profile) if profile.on_gpu else on_cpu(profile)

    def apply(self, target: Any, params: Params) -> Applied | None:
        """Set the variables, unless the user set one of their kind; see `set_variables`."""
        use = str(params["use"])
        if use in MALLOCS and use not in preloadable():
            raise NoEffectError(f"{use} is not installed here")
        return Applied(undo=set_variables(target, use), effect=partial(effect, use))

    def by_hand(self, params: Params) -> str:
        """Say the variables."""
        variables = variables_of(str(params["use"]))
        return "".join(f"export {name}={value}\n" for name, value in variables.items())


def on_gpu(profile: WorkloadProfile) -> Finding:
    """Judge torch's allocator on a GPU by how often it still turns to the driver."""
    requests = profile.job.device_requests
    if requests is None:
        return Finding(
            fits=False, reason="it is not known how often the driver is asked for memory"
        )
    if requests == 0:
        reason = "torch's allocator holds all it needs, and asks the driver for no memory any more"
        return Finding(fits=False, reason=reason)
    # A request holds up the host, and sometimes waits for the device.
    idle = profile.share(Category.GAP) + profile.share(Category.DATA_WAIT)
    return Finding(
        fits=True,
        reason=f"torch asks the driver for memory, or gives it back, {requests:.2g} times a step",
        bound=None if profile.breakdown_ms is None else 1 / max(1 - idle, 1 / MOST),
        space={"use": (EXPANDABLE,)},
    )


def on_cpu(profile: WorkloadProfile) -> Finding:
    """Judge malloc by how many pages each step touches for the first time."""
    faults, step_ms = profile.job.page_faults, profile.steps.step_ms.mean
    if faults is None:
        return Finding(fits=False, reason="it is not known how much memory a step asks for anew")
    reason = f"each step asks the system for {faults:,.0f} pages that it had given back"
    saved = min(faults * FAULT_MS_AT_MOST / step_ms, 1.0) if step_ms > 0 else 0.0
    if saved < 0.01:
        return Finding(fits=False, reason=f"each step asks the system for {faults:,.0f} pages only")
    return Finding(
        fits=True,
        reason=reason,
        bound=1 / max(1 - saved, 1 / MOST),
        space={"use": (KEPT_HEAP, *(m for m in MALLOCS if m in profile.environment.mallocs))},
    )


def variables_of(use: str) -> Mapping[str, str]:
    """Return the variables that choose this allocator."""
    if use == EXPANDABLE:
        return ON_GPU
    if use == KEPT_HEAP:
        return KEEP
    return {"LD_PRELOAD": use} | (JEMALLOC if "jemalloc" in use else {})


def chosen_allocator(environment: Mapping[str, str], *, gpu: bool) -> str | None:
    """Return the variable by which the user chose an allocator, as `NAME=value`."""
    names = GPU_VARIABLES if gpu else CPU_VARIABLES
    return next((f"{n}={environment[n]}" for n in names if environment.get(n)), None)


def set_variables(environment: MutableMapping[str, str], use: str) -> Undo:
    """Set the allocator's variables; a user's own of their kind stay, and nothing is set.

    Raises:
        NoEffectError: the user chose an allocator.
    """
    wanted = variables_of(use)
    others = {k: v for k, v in environment.items() if wanted.get(k) != v}
    chosen = chosen_allocator(others, gpu=use == EXPANDABLE)
    if chosen is not None:
        raise NoEffectError(f"{chosen} is set for the job, and was left alone")
    new = [name for name in wanted if name not in environment]
    environment.update(wanted)

    def undo() -> None:
        for name in new:
            environment.pop(name, None)

    return undo


def effect(use: str) -> str | None:
    """Say what allocates in this process; None where it is not what was asked for."""
    from aiak_tune.ops import allocators

    if use == EXPANDABLE:
        count, size = allocators.expandable_segments()
        return f"{count} expandable segments hold {size / 2**20:,.0f} MiB" if count else None
    if use == KEPT_HEAP:
        if not allocators.heap_is_kept():
            raise NoEffectError("this process has another malloc than glibc's, or set it itself")
        return "malloc keeps what it was given, large blocks too"
    name = use.split(".so")[0]
    if not allocators.is_mapped(name):
        raise NoEffectError(f"this process did not load {use}")
    return f"malloc is {name}'s"
