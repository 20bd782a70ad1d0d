"""Collects the facts of the job from its own objects: model, optimizer, loader, machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from aiak_tune.profiles.fingerprint import model_fingerprint


def unwrapped(module: Any) -> Any:
    """Return the module inside DDP and torch.compile wrappers."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and type(module).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = module.module
        if inner is None:
            return module
        module = inner


def inside_ddp(module: Any) -> Any:
    """Return the module that DDP replicates, else the module itself.

    It is the model that is measured and changed: to call DDP outside of the job's own steps would
    start collectives. Where its forward stands on the instance, somebody redirects it for one call
    (Lightning): a change would be lost with it.
    """
    if type(module).__name__ != "DistributedDataParallel" or "forward" in vars(module.module):
        return module
    return module.module


def local(tensor: Any) -> Any:
    """Return what this rank holds of a tensor, which may be sharded (FSDP).

    To read the whole of it would start a collective.
    """
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def model_facts(module: Any) -> dict[str, Any]:
    """The document's model facts of the root module."""
    parameters = list(module.parameters())
    return {
        "class": type(unwrapped(module)).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "parameter_tensors": len(parameters),
        "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        "devices": sorted({p.device.type for p in parameters}),
    }


def convolution_facts(module: Any) -> dict[str, Any]:
    """How many convolutions the root module has, and whether all of them are channels-last."""
    from aiak_tune.ops.layouts import convolution_weights, is_last

    weights = convolution_weights(module)
    return {
        "convolutions": len(weights),
        "channels_last": bool(weights) and all(is_last(w) for w in weights),
    }


def optimizer_facts(optimizer: Any) -> dict[str, Any]:
    """The document's optimizer facts; `fused` None where the class has no such option."""
    parameters = [p for g in optimizer.param_groups for p in g["params"]]
    group = optimizer.param_groups[0]
    return {
        "class": type(optimizer).__name__,
        "exact_class": type(optimizer).__module__.startswith("torch.optim"),
        "fused": bool(group["fused"]) if "fused" in group else None,
        "foreach": group.get("foreach"),
        "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
        "devices": sorted({p.device.type for p in parameters}),
        "parameters": sum(p.numel() for p in parameters),
        "capturable": bool(group.get("capturable", False)),
        "differentiable": bool(group.get("differentiable", False)),
    }


def loader_facts(loader: Any) -> dict[str, Any]:
    """The document's loader facts; obstacles are found by the entry that would change it."""
    from torch.utils.data import IterableDataset

    from aiak_tune.optimizations.data_workers import obstacles

    context = getattr(loader, "multiprocessing_context", None)
    try:
        batches = len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        batches = None
    return {
        "class": type(loader).__name__,
        "num_workers": int(loader.num_workers),
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "prefetch_factor": loader.prefetch_factor,
        "map_style": not isinstance(loader.dataset, IterableDataset),
        "batches_per_epoch": batches,
        "start_method": context.get_start_method() if context is not None else None,
        "obstacles": list(obstacles(loader)),
    }


def tensors_in(value: Any, depth: int = 4) -> list[Any]:
    """Return the tensors in a batch or in call arguments, in a fixed order."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return [value]
    if depth == 0:
        return []
    return [t for item in parts_of(value) for t in tensors_in(item, depth - 1)]


def parts_of(value: Any) -> list[Any]:
    """Return what a container holds: a mapping, a sequence of either kind, a dataclass."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, Mapping):
        return [value[key] for key in value]
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, f.name, None) for f in fields(value)]
    return []


def shapes_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the tensors a module is called with."""
    return tuple(tuple(t.shape) for t in tensors_in((list(args), kwargs)))


def fingerprints(module: Any, optimizer: str, shapes: tuple[tuple[int, ...], ...]) -> list[str]:
    """Return the model's fingerprint with exact batch shapes, then with their ranks alone.

    The second is for jobs whose batches vary in shape (text of any length, last batches).
    """
    structure = [
        (name, type(m).__name__, tuple(d for p in m.parameters(recurse=False) for d in p.shape))
        for name, m in unwrapped(module).named_modules()
    ]
    loose = tuple((0,) * len(shape) for shape in shapes)
    return [model_fingerprint(structure, optimizer, s) for s in (shapes, loose)]


def environment_facts(torch: Any) -> dict[str, Any]:
    """What only the job's own torch can tell of the machine."""
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "python": "{}.{}.{}".format(*sys.version_info),
        "cuda": torch.version.cuda or getattr(torch.version, "hip", None),
        "gpu_count": 0,
    }
    facts["bf16_fast"] = _cpu_bf16(torch)
    facts |= _compile_facts(torch)
    if torch.cuda.is_available():
        device = torch.cuda.current_device()
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": properties.name,
            "gpu_count": torch.cuda.device_count(),
            "compute_capability": [properties.major, properties.minor],
            "gpu_memory_bytes": properties.total_memory,
            "bf16_fast": torch.cuda.is_bf16_supported(),
        }
        nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
        facts["nccl"] = ".".join(map(str, nccl)) if nccl else None
    return facts


def _compile_facts(torch: Any) -> dict[str, Any]:
    """Whether what torch.compile calls is there: a compiler, Python's headers, triton."""
    names = [os.environ.get("CXX", "g++")]
    if torch.cuda.is_available():  # triton takes any C compiler
        names += [os.environ.get("CC", "gcc"), "clang"]
    headers = os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))
    return {
        "compiler": headers and any(shutil.which(name) for name in names),
        "triton": importlib.util.find_spec("triton") is not None,
    }


def _cpu_bf16(torch: Any) -> bool | None:
    """Whether this CPU multiplies bfloat16 in hardware; None where torch cannot say."""
    amx = getattr(torch.cpu, "_is_amx_tile_supported", None)
    avx = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    if amx is None or avx is None:
        return None
    return bool(amx() or avx())


class LoaderKind:
    """What a loader has in common with the one that a job makes anew for the next epoch.

    The loader itself is not kept: its worker processes would live as long.
    """

    def __init__(self, loader: Any) -> None:
        self._traits = self._of(loader)

    def has(self, loader: Any) -> bool:
        """Whether the loader is of this kind: made alike, over a dataset made alike.

        Jobs make the dataset anew too. A held-out one differs in its class, its length or the
        order in which it is read; where it does not, settings of the training loader suit it.
        """
        return self._of(loader) == self._traits

    @staticmethod
    def _of(loader: Any) -> tuple[object, ...]:
        try:
            samples = len(loader.dataset)
        except Exception:  # code of the job's; an iterable has no length
            samples = None
        kinds = (type(part) for part in (loader, loader.dataset, loader.sampler))
        collate = getattr(loader.collate_fn, "__qualname__", type(loader.collate_fn))
        return (*kinds, samples, loader.batch_size, loader.drop_last, collate)


def synchronize(torch: Any) -> None:
    """Wait until the device has done what it was given."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def peak_memory(torch: Any) -> int:
    """Bytes at most: the device allocator's where a GPU is used, else this process's."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
