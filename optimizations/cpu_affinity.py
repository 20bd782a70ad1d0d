"""CPU affinity: each rank stays on cores of its own, near its GPU."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
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
)
from aiak_tune.optimizations.examples import ON_CPU, PLAIN
from aiak_tune.profiles import topology
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import WorkloadProfile

VARIABLES = (
    "OMP_PLACES", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "ACCELERATE_CPU_AFFINITY",
)  # fmt: skip
# What a process could use before we bound it: its children inherit less, and may be ranks.
BEFORE = "AIAK_TUNE_CORES"
MOST = 16.0


def _ranks(count: int, nodes: int = 1, base: WorkloadProfile = ON_CPU) -> WorkloadProfile:
    environment = replace(base.environment, ranks_per_node=count, numa_nodes=nodes)
    return replace(base, environment=environment)


class CpuAffinity(Optimization):
    """Bind the rank's threads; what it starts later, data workers too, stays there with it."""

    name = "cpu-affinity"
    summary = "each rank on cores of its own, near its GPU; its data workers with it"
    # Not before the command starts, though nothing of torch is needed: there one process starts
    # all ranks (docs/decisions/0010-affinity-in-the-process.md).
    stage = Stage.PROCESS
    level = 0
    addresses = frozenset({Category.COMPUTE, Category.DATA_WAIT, Category.GAP, Category.H2D})
    space = {"cores": (topology.GPU_SHARE, topology.GPU_NODE, topology.SHARE)}
    conflicts = frozenset[str]()
    examples = (
        Example(profile=_ranks(4), fits=True),
        Example(profile=_ranks(1, nodes=2, base=PLAIN), fits=True),
        Example(profile=_ranks(1), fits=False),
        Example(profile=_ranks(1, nodes=2), fits=False),
        Example(profile=_ranks(32), fits=False),
    )

    def numerics(self, profile: WorkloadProfile, params: Params) -> Numerics:
        """Where a thread runs changes nothing that is computed; fewer threads split sums anew."""
        return Numerics.LOSSLESS

    def check(self, profile: WorkloadProfile) -> Finding:
        """Fit several ranks on one machine, or a GPU that is near to some of the cores only."""
        refusal = refuse(profile)
        if refusal is not None:
            return Finding(fits=False, reason=refusal)
        here, values = profile.environment, choices(profile)
        smallest = min(cores_with(v, profile) for v in values)
        workers = 0 if profile.job.loader is None else profile.job.loader.num_workers
        if workers > smallest:
            reason = f"{workers} data workers a rank would stay on {smallest} cores with it"
            return Finding(fits=False, reason=reason)
        what = f"{here.ranks_per_node} ranks move over {here.cores} cores"
        if here.numa_nodes:
            what += f" of {here.numa_nodes} NUMA nodes"
        return Finding(fits=True, reason=what, bound=at_best(profile), space={"cores": values})

    def apply(self, target: Any, params: Params) -> Applied | None:
        """Bind this process, unless the user bound it; see `bind`."""
        chosen = chosen_affinity(os.environ)
        if chosen is not None:
            raise NoEffectError(f"{chosen} is set for the job, and was left alone")
        before = os.environ.get(BEFORE)
        allowed = topology.cores_in(before) if before else frozenset(os.sched_getaffinity(0))
        rank, ranks = place_of_rank(os.environ)
        try:
            homes = topology.homes_of(ranks, os.environ.get("CUDA_VISIBLE_DEVICES"))
            cores = topology.cores_of_rank(str(params["cores"]), allowed, rank, ranks, homes)
        except LookupError as error:
            raise NoEffectError(str(error.args[0])) from error
        return bind(cores, allowed)

    def by_hand(self, params: Params) -> str:
        """Say the system's own call; `torchrun --numa-binding` does much the same."""
        return BY_HAND[str(params["cores"])]


# In a function: a script may have names like `rank` of its own.
_BEGIN = """\
import os
from pathlib import Path

import torch


# Much the same by the launcher: torchrun --numa-binding={binding}
def stay_on_own_cores():
    rank, ranks = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    cores = sorted(os.sched_getaffinity(0))
"""
_NEAR = """\
    # Where CUDA_VISIBLE_DEVICES picks some of several GPUs, count by it.
    gpus = sorted(os.listdir("/proc/driver/nvidia/gpus"))
    nodes = [Path(f"/sys/bus/pci/devices/{gpu}/numa_node").read_text().strip() for gpu in gpus]
    near = set()
    for part in Path(f"/sys/devices/system/node/node{nodes[rank]}/cpulist").read_text().split(","):
        first, _, last = part.strip().partition("-")
        near |= set(range(int(first), int(last or first) + 1))
    cores = [core for core in cores if core in near]
"""
_MATES = """\
    mates = [mate for mate in range(ranks) if nodes[mate] == nodes[rank]]
    rank, ranks = mates.index(rank), len(mates)
"""
_CUT = """\

    def whole(core):  # the threads of one physical core go to one rank
        place = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        first = place.read_text().replace("-", ",").split(",")[0] if place.exists() else core
        return int(first), core

    cores.sort(key=whole)
    cores = cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks]
"""
_BIND = """\
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)
    torch.set_num_threads(min(torch.get_num_threads(), len(cores)))


stay_on_own_cores()
"""
BY_HAND = {
    topology.SHARE: _BEGIN.format(binding="exclusive") + _CUT + _BIND,
    topology.GPU_NODE: _BEGIN.format(binding="node") + _NEAR + _BIND,
    topology.GPU_SHARE: _BEGIN.format(binding="exclusive") + _NEAR + _MATES + _CUT + _BIND,
}


def refuse(profile: WorkloadProfile) -> str | None:
    """Return why ranks are left to move, None when they may be bound."""
    job, here = profile.job, profile.environment
    ranks, nodes = here.ranks_per_node, here.numa_nodes or 1
    if job.model is None:
        return "no model was seen to train"
    if job.affinity_by is not None:
        return f"the job's cores were chosen: {job.affinity_by}"
    if job.ddp and ranks == 1 and here.gpu_count > 1:
        return "it is not known how many ranks share this machine"
    if ranks == 1 and not profile.on_gpu:
        return "one rank computes on all cores"
    if ranks == 1 and nodes == 1:
        return "one rank on one NUMA node has nothing to keep apart"
    if ranks > here.cores:
        return f"{ranks} ranks have {here.cores} cores, less than one each"
    return None


def choices(profile: WorkloadProfile) -> tuple[str, ...]:
    """Return the ways to share out the cores of this machine that are worth a trial."""
    here = profile.environment
    if not profile.on_gpu or (here.numa_nodes or 1) == 1:
        return (topology.SHARE,)
    return (
        (topology.GPU_NODE,)
        if here.ranks_per_node == 1
        else (topology.GPU_SHARE, topology.GPU_NODE)
    )


def cores_with(use: str, profile: WorkloadProfile) -> int:
    """Return about how many cores a rank then has."""
    here = profile.environment
    parts = (here.numa_nodes or 1) if use == topology.GPU_NODE else here.ranks_per_node
    return max(1, here.cores // max(1, parts))


def at_best(profile: WorkloadProfile) -> float | None:
    """Return the gain if all that the host does took no time; kernels do not mind the cores."""
    if profile.breakdown_ms is None or not profile.on_gpu:
        return None
    host = sum(profile.share(c) for c in (Category.DATA_WAIT, Category.GAP, Category.H2D))
    return 1 / max(1 - host, 1 / MOST)


def chosen_affinity(environment: Mapping[str, str]) -> str | None:
    """Return the variable by which the user chose cores, as `NAME=value`."""
    return next((f"{n}={environment[n]}" for n in VARIABLES if environment.get(n)), None)


def place_of_rank(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return the rank's number among those that a launcher started here, and how many they are."""
    ranks = int(environment.get("LOCAL_WORLD_SIZE") or 1)
    return (int(environment.get("LOCAL_RANK") or 0), ranks) if ranks > 1 else (0, 1)


def bind(cores: Collection[int], allowed: Collection[int]) -> Applied | None:
    """Bind all threads of this process; None where they may use no others. For use by hand too.

    OpenMP takes as many threads as there are cores when a process starts: it gets no more than
    are left. Processes that it starts inherit all this.
    """
    import torch

    if set(cores) >= set(allowed):
        return None
    before = os.sched_getaffinity(0)
    marked, threads = os.environ.get(BEFORE), torch.get_num_threads()
    fewer = threads > len(cores) and "OMP_NUM_THREADS" not in os.environ
    os.environ[BEFORE] = topology.as_text(allowed)
    _move(cores)
    if fewer:
        torch.set_num_threads(len(cores))

    def undo() -> None:
        _move(before)
        if fewer and torch.get_num_threads() == len(cores):
            torch.set_num_threads(threads)
        os.environ.pop(BEFORE, None)
        if marked is not None:
            os.environ[BEFORE] = marked

    def effect() -> str:
        dist = torch.distributed
        if "LOCAL_RANK" not in os.environ and dist.is_initialized() and dist.get_world_size() > 1:
            raise NoEffectError("LOCAL_RANK does not tell the ranks apart: all are on one's cores")
        now = os.sched_getaffinity(0)
        if now != set(cores):
            raise NoEffectError(f"the job moved itself to cores {topology.as_text(now)}")
        less = f", on {len(cores)} threads in place of {threads}" if fewer else ""
        return f"on cores {topology.as_text(cores)} of {topology.as_text(allowed)}{less}"

    return Applied(undo=undo, effect=effect)


def _move(cores: Collection[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:
            continue  # it has ended meanwhile
