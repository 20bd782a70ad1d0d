"""Data workers: processes that make the batches while the model computes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from aiak_tune.optimizations.base import (
    Applied,
    Example,
    Finding,
    Numerics,
    Optimization,
    Params,
    Space,
    Stage,
)
from aiak_tune.optimizations.examples import LOADER, PLAIN, fed_by
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import LoaderFacts, WorkloadProfile

MOST = 64
SHM_SHARE = 0.8  # of what is free in /dev/shm; workers die of a bus error beyond it
PREFETCH = (2, 4)
# Epochs longer than this end so rarely that starting workers again does not show.
LONG_EPOCH_MS = 60_000.0
MOST_CANDIDATES = 6


class DataWorkers(Optimization):
    """Set num_workers, prefetch_factor, pin_memory and persistent_workers as one decision."""

    name = "data-workers"
    summary = "DataLoader workers, prefetching and pinned memory"
    stage = Stage.LOADER
    level = 0
    addresses = frozenset({Category.DATA_WAIT, Category.H2D})
    space = {
        "num_workers": tuple(range(1, MOST + 1)),
        "prefetch_factor": PREFETCH,
        "pin_memory": (True, False),
        "persistent_workers": (True, False),
    }
    conflicts = frozenset[str]()
    examples = (
        Example(profile=PLAIN, fits=True),
        Example(profile=fed_by(LOADER), fits=True),
        Example(profile=fed_by(None), fits=False),
        Example(profile=fed_by(replace(LOADER, obstacles=("dataset.file is open",))), fits=False),
        Example(profile=fed_by(replace(LOADER, batch_bytes=2**28), 2**26), fits=False),
    )

    def numerics(self, profile: WorkloadProfile, params: Params) -> Numerics:
        """Same samples in the same order; random augmentations are equal in distribution."""
        return Numerics.LOSSLESS

    def check(self, profile: WorkloadProfile) -> Finding:
        """Fit where batches are waited for, or copied unpinned, and workers can change that."""
        loader = profile.job.loader
        refusal = refuse(loader)
        if loader is None or refusal is not None:
            return Finding(fits=False, reason=refusal or "")
        space = sensible_space(profile, loader)
        if not space["num_workers"]:
            return Finding(fits=False, reason=why_no_count(profile, loader))
        best_ms = min(step_at_best(profile, loader, int(w)) for w in space["num_workers"])
        by = f"{loader.num_workers} workers" if loader.num_workers else "the main process"
        if profile.breakdown_ms is None:
            return Finding(fits=True, reason=f"batches are made by {by}", space=space)
        share = profile.share(Category.DATA_WAIT)
        reason = f"{share:.0%} of the step waits for batches made by {by}"
        bound = profile.steps.step_ms.mean / best_ms if best_ms > 0 else None
        return Finding(fits=True, reason=reason, bound=bound, space=space)

    def apply(self, target: Any, params: Params) -> Applied | None:
        """Change the loader from its next iterator on; see `set_workers`."""
        return set_workers(
            target,
            workers=int(params["num_workers"]),
            prefetch=int(params.get("prefetch_factor", PREFETCH[0])),
            pin=bool(params.get("pin_memory", False)),
            persistent=bool(params.get("persistent_workers", False)),
        )

    def by_hand(self, params: Params) -> str:
        """Set the loader's attributes, or the arguments of its constructor."""
        chosen = {
            "num_workers": int(params["num_workers"]),
            "prefetch_factor": int(params.get("prefetch_factor", PREFETCH[0])),
        }
        # What the job keeps or pins by itself stays so.
        chosen |= {n: True for n in ("pin_memory", "persistent_workers") if params.get(n)}
        arguments = ", ".join(f"{name}={value}" for name, value in chosen.items())
        # The constructor alone takes persistent_workers by its name.
        sets = [
            f'vars(loader)["{name}"] = {value}'
            if name == "persistent_workers"
            else f"loader.{name} = {value}"
            for name, value in chosen.items()
        ]
        return "\n".join((f"# Or where it is made: DataLoader(…, {arguments})", *sets)) + "\n"


def refuse(loader: LoaderFacts | None) -> str | None:
    """Return why the loader is left alone, None when its workers may change."""
    if loader is None:
        return "no DataLoader feeds the model"
    if loader.obstacles:
        return "; ".join(loader.obstacles)
    if not loader.map_style:
        return "an iterable dataset's order depends on the number of workers"
    if loader.num_workers == 0 and loader.start_method not in (None, "fork"):
        return f"workers would start by {loader.start_method}, which the script may not be made for"
    return None


def cores_of(profile: WorkloadProfile) -> int:
    """Return the cores that one rank has to itself."""
    return max(1, profile.environment.cores // max(1, profile.environment.ranks_per_node))


def data_ms(profile: WorkloadProfile, loader: LoaderFacts) -> float:
    """Return the time that one worker needs for a step's batches.

    The main process is waited for as long as it works; workers that are waited for were busy all
    through the step.
    """
    wait_ms = (profile.breakdown_ms or {}).get(Category.DATA_WAIT, 0.0)
    return loader.num_workers * profile.steps.step_ms.mean if loader.num_workers else wait_ms


def step_at_best(profile: WorkloadProfile, loader: LoaderFacts, workers: int) -> float:
    """Return the shortest step that so many workers could give, in milliseconds."""
    breakdown = profile.breakdown_ms or {}
    wait_ms = breakdown.get(Category.DATA_WAIT, 0.0)
    pins = may_pin(profile, loader) and not loader.pin_memory
    copied_ms = breakdown.get(Category.H2D, 0.0) if pins else 0.0
    rest_ms = profile.steps.step_ms.mean - wait_ms - copied_ms
    if wait_ms <= 0 or loader.num_workers > cores_of(profile):
        return rest_ms  # more workers than cores: what one alone needs is not known
    best_ms = max(rest_ms, data_ms(profile, loader) / workers)
    cpu_ms = profile.detail_ms.data_cpu
    if not profile.on_gpu and loader.num_workers == 0 and cpu_ms is not None:
        # The model computes on the same cores, on one of them at least.
        best_ms = max(best_ms, (rest_ms + min(cpu_ms, wait_ms)) / cores_of(profile))
    return best_ms


def guess(profile: WorkloadProfile, loader: LoaderFacts) -> int:
    """Return the workers needed to make batches as fast as the rest of the step uses them."""
    step_ms = profile.steps.step_ms.mean
    if profile.breakdown_ms is None or step_ms <= 0:
        return max(1, cores_of(profile) // 2)
    rest_ms = step_ms - profile.breakdown_ms.get(Category.DATA_WAIT, 0.0)
    if rest_ms <= 0 or loader.num_workers > cores_of(profile):
        return most_workers(profile)
    need = math.ceil(min(data_ms(profile, loader) / rest_ms, MOST))
    return min(max(1, need), most_workers(profile))


def most_workers(profile: WorkloadProfile) -> int:
    """Return how many workers a rank can use: its cores, or more where they wait for storage."""
    cores = min(cores_of(profile), MOST)
    io_ms, cpu_ms = profile.detail_ms.data_io or 0.0, profile.detail_ms.data_cpu or 0.0
    return min(4 * cores, MOST) if io_ms > cpu_ms else cores


def may_pin(profile: WorkloadProfile, loader: LoaderFacts) -> bool:
    """Pinned memory wants a GPU, and batches that do not lie on it already."""
    return profile.on_gpu and not loader.on_device


def fits_shm(profile: WorkloadProfile, loader: LoaderFacts, workers: int, prefetch: int) -> bool:
    """Whether the batches that all ranks' workers keep ready fit into /dev/shm."""
    free_bytes, batch_bytes = profile.environment.shm_free_bytes, loader.batch_bytes
    if free_bytes is None or batch_bytes is None:
        return True
    batches = profile.environment.ranks_per_node * workers * prefetch
    return batches * batch_bytes <= SHM_SHARE * free_bytes


def counts(profile: WorkloadProfile, loader: LoaderFacts) -> Iterable[int]:
    """Return numbers of workers worth a trial, the best guess first."""
    most, cores, first = most_workers(profile), cores_of(profile), guess(profile, loader)
    own = loader.num_workers  # with pinning it may be enough
    around = (first, own, 2 * first, first + 1, cores - 1, cores, most, max(1, first // 2))
    legal = [w for w in dict.fromkeys(around) if 1 <= w <= most]
    return legal[:MOST_CANDIDATES]


def sensible_space(profile: WorkloadProfile, loader: LoaderFacts) -> Space:
    """Return the values that make sense here, the best guess of each first."""
    pin = loader.pin_memory or may_pin(profile, loader)
    step_ms = profile.steps.step_ms.mean
    ready = [w for w in counts(profile, loader) if fits_shm(profile, loader, w, PREFETCH[0])]
    # Of the job's own count only what pinning adds is left to gain.
    new = [w for w in ready if w != loader.num_workers or pin != loader.pin_memory]
    if profile.breakdown_ms is not None:
        new = [w for w in new if step_at_best(profile, loader, w) * 1.01 < step_ms]
    prefetch = [p for p in PREFETCH if all(fits_shm(profile, loader, w, p) for w in new)]
    return {
        "num_workers": tuple(new),
        "prefetch_factor": tuple(prefetch) or PREFETCH[:1],
        "pin_memory": (pin,),
        "persistent_workers": persistent_values(profile, loader),
    }


def persistent_values(profile: WorkloadProfile, loader: LoaderFacts) -> tuple[bool, ...]:
    """Return whether to keep workers from epoch to epoch: it shows where epochs are short."""
    if loader.persistent_workers:
        return (True,)
    if loader.batches_per_epoch is None:
        return (False, True)
    epoch_ms = loader.batches_per_epoch * profile.steps.step_ms.mean
    return (False,) if epoch_ms > LONG_EPOCH_MS else (True, False)


def why_no_count(profile: WorkloadProfile, loader: LoaderFacts) -> str:
    """Return the reason why no number of workers is worth a trial."""
    if not fits_shm(profile, loader, 1, PREFETCH[0]):
        batch, free = loader.batch_bytes or 0, profile.environment.shm_free_bytes or 0
        return (
            f"/dev/shm has {free / 2**20:.0f} MiB free, too little for {PREFETCH[0]} batches of "
            f"{batch / 2**20:.0f} MiB from a worker of each rank; a larger /dev/shm would help"
        )
    if profile.share(Category.DATA_WAIT) * 100 >= 1:
        return f"no more than {most_workers(profile)} workers have a core here, which gains nothing"
    return f"{profile.share(Category.DATA_WAIT):.1%} of the step waits for batches"


def set_workers(
    loader: Any, *, workers: int, prefetch: int = 2, pin: bool = False, persistent: bool = False
) -> Applied | None:
    """Change a DataLoader's workers from its next iterator on; None when nothing changed.

    Usable without the tuner. The order of samples stays, the job's sampler, generator, collate
    function and start method too; a loader with `obstacles` is left alone.
    """
    from aiak_tune.ops.loader_workers import change_workers, real_loader, restore

    real = real_loader(loader)
    if real is None or obstacles(real):
        return None
    watch = change_workers(real, workers=workers, prefetch=prefetch, pin=pin, persistent=persistent)
    if watch is None:
        return None

    def effect() -> str | None:
        if not watch.batches:
            return None
        return f"{watch.batches} batches from {workers} worker processes"

    return Applied(undo=partial(restore, real, watch), effect=effect)


def obstacles(loader: Any) -> tuple[str, ...]:
    """Return why the loader's worker settings must be left alone, a sentence each."""
    from aiak_tune.ops import dataset_scan

    return dataset_scan.obstacles(loader)
