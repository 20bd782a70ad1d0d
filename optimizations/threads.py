"""Threads: as many for torch's operators as the rank has cores to itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
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
from aiak_tune.optimizations.examples import LOADER, ON_CPU
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import LoaderFacts, WorkloadProfile

MOST = 256
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Both launchers give their ranks OMP_NUM_THREADS=1 where the user said nothing.
LAUNCHED = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")


def _example(threads: int, *, cores: int = 16, **changes: Any) -> WorkloadProfile:
    environment = replace(ON_CPU.environment, cores=cores)
    return replace(
        ON_CPU, environment=environment, job=replace(ON_CPU.job, threads=threads, **changes)
    )


class Threads(Optimization):
    """Set the intra-op pool's size; data workers keep the one thread that torch gives them."""

    name = "threads"
    summary = "torch's threads on a CPU: no more than there are cores, and no fewer"
    stage = Stage.PROCESS
    level = 0
    # Threads without a core of their own slow down whatever runs beside them.
    addresses = frozenset({Category.COMPUTE, Category.DATA_WAIT, Category.GAP})
    space = {"num_threads": tuple(range(1, MOST + 1))}
    conflicts = frozenset[str]()
    examples = (
        Example(profile=_example(1), fits=True),
        Example(profile=_example(64, cores=4), fits=True),
        Example(profile=_example(16, loader=replace(LOADER, num_workers=8)), fits=True),
        Example(profile=_example(16), fits=False),
        Example(profile=_example(4, threads_by="OMP_NUM_THREADS=4"), fits=False),
        Example(profile=replace(_example(1), job=replace(ON_CPU.job, model=None)), fits=False),
    )

    def numerics(self, profile: WorkloadProfile, params: Params) -> Numerics:
        """Sums are split otherwise: the last bit of a convolution may differ."""
        return Numerics.LOSSLESS

    def check(self, profile: WorkloadProfile) -> Finding:
        """Fit CPU jobs whose threads and cores do not agree, where nobody chose their number."""
        refusal = refuse(profile)
        threads = profile.job.threads
        if refusal is not None or threads is None:
            return Finding(fits=False, reason=refusal or "")
        cores, workers = cores_of(profile), workers_of(profile.job.loader)
        counts = tuple(n for n in candidates(cores, workers) if n != threads)
        reason = f"{threads} threads where a rank has {cores} cores"
        if workers:
            reason += f", and {workers} data workers want some of them"
        if threads == cores and not workers or not counts:
            return Finding(fits=False, reason=f"{reason}: one each")
        return Finding(
            fits=True,
            reason=reason,
            bound=at_best(profile, threads, max(counts)),
            space={"num_threads": counts},
        )

    def apply(self, target: Any, params: Params) -> Applied | None:
        """Set the number of threads, unless the user did; see `set_threads`."""
        chosen = chosen_threads(os.environ)
        if chosen is not None:
            raise NoEffectError(f"{chosen} is set for the job, and was left alone")
        return set_threads(int(params["num_threads"]))

    def by_hand(self, params: Params) -> str:
        """Say torch's own call."""
        return f"import torch\n\ntorch.set_num_threads({params['num_threads']})\n"


def refuse(profile: WorkloadProfile) -> str | None:
    """Return why the number of threads is left alone, None when it may change."""
    job = profile.job
    if job.model is None:
        return "no model was seen to train"
    if profile.on_gpu:
        return "the model computes on the GPU"
    if job.threads_by is not None:
        return f"the job chose its number of threads by {job.threads_by}"
    if job.threads is None:
        return "it is not known how many threads the job has"
    return None


def cores_of(profile: WorkloadProfile) -> int:
    """Return the cores that one rank has to itself."""
    return max(1, profile.environment.cores // max(1, profile.environment.ranks_per_node))


def workers_of(loader: LoaderFacts | None) -> int:
    """Return how many processes make batches beside the one that trains."""
    return 0 if loader is None else loader.num_workers


def candidates(cores: int, workers: int) -> tuple[int, ...]:
    """Return numbers of threads worth a trial, the best guess first."""
    free = max(1, cores - workers)
    counts = dict.fromkeys((free, cores, max(1, cores // 2), 1))
    return tuple(min(n, MOST) for n in counts)[:4]


def at_best(profile: WorkloadProfile, threads: int, most: int) -> float | None:
    """Return the gain if computation went as many times faster as there are more threads.

    None where there would be fewer: what threads without a core of their own cost is not known.
    """
    cores = cores_of(profile)
    if profile.breakdown_ms is None or threads >= most or threads > cores:
        return None
    saved = profile.share(Category.COMPUTE) * (1 - threads / most)
    return 1 / max(1 - saved, 1 / MOST)


def chosen_threads(environment: Mapping[str, str]) -> str | None:
    """Return the variable by which the user chose a number of threads, as `NAME=value`."""
    for name in VARIABLES:
        value = environment.get(name)
        if value is not None and not _launchers_own(name, value, environment):
            return f"{name}={value}"
    return None


def _launchers_own(name: str, value: str, environment: Mapping[str, str]) -> bool:
    """Whether torchrun or accelerate set it: then they were started without it."""
    if name != "OMP_NUM_THREADS" or value != "1" or not any(m in environment for m in LAUNCHED):
        return False
    try:
        started_with = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:
        return False
    return not any(v.startswith(b"OMP_NUM_THREADS=") for v in started_with.split(b"\0"))


def set_threads(count: int) -> Applied | None:
    """Set torch's intra-op threads; None where there are so many already. For use by hand too."""
    import torch

    before = torch.get_num_threads()
    if before == count:
        return None
    torch.set_num_threads(count)

    def effect() -> str:
        now = torch.get_num_threads()
        if now != count:
            raise NoEffectError(f"the job set {now} threads itself, after {count} were set")
        return f"{count} threads in place of {before}"

    return Applied(undo=partial(torch.set_num_threads, before), effect=effect)
