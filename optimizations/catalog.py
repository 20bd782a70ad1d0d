"""The catalog: every entry, and the judgement that puts one into a search or leaves it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aiak_tune.optimizations.allocator import Allocator
from aiak_tune.optimizations.amp import Amp
from aiak_tune.optimizations.base import Finding, Optimization
from aiak_tune.optimizations.channels_last import ChannelsLast
from aiak_tune.optimizations.compile import Compile
from aiak_tune.optimizations.cpu_affinity import CpuAffinity
from aiak_tune.optimizations.cudnn_benchmark import CudnnBenchmark
from aiak_tune.optimizations.data_workers import DataWorkers
from aiak_tune.optimizations.fused_optimizer import FusedOptimizer
from aiak_tune.optimizations.tf32 import Tf32
from aiak_tune.optimizations.threads import Threads
from aiak_tune.profiles.workload import WorkloadProfile

# Entries of one stage are applied in this order: the last stands outermost.
CATALOG: tuple[Optimization, ...] = (
    Allocator(),
    CpuAffinity(),
    Threads(),
    Tf32(),
    CudnnBenchmark(),
    ChannelsLast(),
    Amp(),
    Compile(),
    DataWorkers(),
    FusedOptimizer(),
)

by_name: Mapping[str, Optimization] = {entry.name: entry for entry in CATALOG}

WORTH = 1.01  # a bound below this is left out of the search (DESIGN.md section 6)
# Where an entry addresses nearly the whole step Amdahl's law says nothing; documents hold finite
# numbers only, and no entry has been seen to gain more than a tensor core over its scalar units.
MOST = 16.0


def judge(optimization: Optimization, profile: WorkloadProfile) -> Finding:
    """Return the entry's finding with `bound` filled in; what cannot gain 1% does not fit."""
    finding = optimization.check(profile)
    if not finding.fits:
        return replace(finding, bound=None)
    known = [b for b in (finding.bound, amdahl(optimization, profile)) if b is not None]
    if not known:
        reason = f"{finding.reason}; no breakdown, so what it could gain is not known"
        return replace(finding, reason=reason)
    bound = max(1.0, min(*known, MOST))
    if bound < WORTH:
        reason = f"{finding.reason}, and it could gain at most {bound - 1:.1%}"
        return replace(finding, fits=False, reason=reason, bound=None)
    return replace(finding, bound=bound)


def amdahl(optimization: Optimization, profile: WorkloadProfile) -> float | None:
    """Return the gain if all that the entry addresses took no time; None without a breakdown."""
    step_ms = profile.steps.step_ms.mean
    if profile.breakdown_ms is None or step_ms <= 0:
        return None
    addressed_ms = sum(profile.breakdown_ms.get(c, 0.0) for c in optimization.addresses)
    return step_ms / max(step_ms - addressed_ms, step_ms / MOST)
