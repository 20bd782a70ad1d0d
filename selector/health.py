"""What this machine and the job's environment have and lack, and what each lack costs."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aiak_tune.agent.arm import OLDEST_TORCH
from aiak_tune.selector.diagnosis import OLDEST
from aiak_tune.selector.interpreter import Interpreter
from aiak_tune.selector.storage import ReadTest

State = Literal["ok", "missing", "note"]
FEW_FILES = 4096  # workers pass tensors by file descriptors
SMALL_SHM = 2**30  # a container's usual 64 MiB is less than two batches of pictures
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing looked at.

    `missing`: it keeps catalog entries from working or jobs from being measured; `note`: it may
    cost speed. Both come with a `remedy` that says what it would bring.
    """

    name: str
    state: State
    found: str
    remedy: str = ""


def check_all(python: Interpreter, storage: ReadTest) -> tuple[Check, ...]:
    """Return every check, hardware first."""
    found = (
        *_processor(python), *_graphics(python), *_memory(), *_storage(storage), *_software(python),
        *_limits(),
    )  # fmt: skip
    return found


def _processor(python: Interpreter) -> Iterator[Check]:
    cores, all_cores = python.environment.cores, os.cpu_count() or 1
    name = python.environment.cpu or "unknown"
    text = f"{name}, {cores} of {all_cores} cores usable"
    if cores < all_cores:
        yield Check(
            name="cpu", state="note", found=text,
            remedy="a wider affinity or a larger CPU quota of the container gives data workers "
            "more cores; the quota is what trials are planned for",
        )  # fmt: skip
    else:
        yield Check(name="cpu", state="ok", found=text)
    if python.environment.bf16_fast is False and python.environment.gpu is None:
        yield Check(
            name="bfloat16", state="note", found="this CPU has no bfloat16 instructions",
            remedy="a CPU with AMX or AVX512-BF16, or a GPU, would make `amp` worth trying",
        )  # fmt: skip


def _graphics(python: Interpreter) -> Iterator[Check]:
    here = python.environment
    if here.gpu is None:
        yield Check(
            name="gpu", state="note", found="none",
            remedy="the job trains on the CPU: on an NVIDIA GPU the whole catalog applies",
        )  # fmt: skip
        return
    yield Check(name="gpu", state="ok", found=f"{here.gpu_count} × {here.gpu}")
    if python.cuda_problem is not None or (here.torch and here.cuda is None):
        why = python.cuda_problem or "this torch is built without CUDA"
        yield Check(
            name="driver and CUDA", state="missing",
            found=f"driver {here.driver or 'unknown'}, torch for CUDA {here.cuda or 'none'}: {why}",
            remedy="install a torch for a CUDA that this driver knows (`nvidia-smi` names it), or "
            "a newer driver: without it the job trains on the CPU",
        )  # fmt: skip
    elif here.torch:
        text = f"driver {here.driver or 'unknown'}, torch for CUDA {here.cuda}, NCCL {here.nccl}"
        yield Check(name="driver and CUDA", state="ok", found=text)
    links = sorted(p.name for p in Path("/sys/class/infiniband").glob("*"))
    yield Check(
        name="rdma", state="ok" if links else "note", found=", ".join(links) or "none",
        remedy="" if links else "only several nodes need it: InfiniBand or RoCE shortens what "
        "collectives take between them",
    )  # fmt: skip


def _memory() -> Iterator[Check]:
    shm = shutil.disk_usage("/dev/shm") if os.path.isdir("/dev/shm") else None
    if shm is None:
        yield Check(
            name="/dev/shm", state="missing", found="not there",
            remedy="mount a tmpfs there: data workers hand their batches over in it",
        )  # fmt: skip
    else:
        small = shm.total < SMALL_SHM
        yield Check(
            name="/dev/shm", state="missing" if small else "ok",
            found=f"{_mib(shm.free)} free of {_mib(shm.total)}",
            remedy="start the container with --shm-size=8g (Kubernetes: an emptyDir of medium "
            "Memory): data workers die of a bus error when it is full" if small else "",
        )  # fmt: skip
    limit, used = _number(CGROUP / "memory.max"), _number(CGROUP / "memory.current")
    if limit is not None and used is not None:
        tight = used > 0.8 * limit
        yield Check(
            name="container memory", state="note" if tight else "ok",
            found=f"{_mib(used)} used of {_mib(limit)}",
            remedy="a higher limit: each data worker holds a copy of what it touches" * tight,
        )  # fmt: skip


def _storage(test: ReadTest) -> Iterator[Check]:
    where = f"{test.folder} ({test.filesystem or 'file system unknown'})"
    if test.bytes_per_s is None:
        yield Check(
            name="storage", state="note", found=f"{where}: not measured: {test.problem}",
            remedy="--storage DIR names the folder that the data lies in; it must be writable",
        )  # fmt: skip
        return
    text = (
        f"{where}: {test.bytes_per_s / 1e6:,.0f} MB/s, {_mib(test.read_bytes)} read in order by "
        f"one thread, {test.method}"
    )
    memory = test.filesystem in ("tmpfs", "ramfs")
    yield Check(
        name="storage", state="note" if memory else "ok", found=text,
        remedy="this is memory, no disk: name the data's folder with --storage DIR" * memory,
    )  # fmt: skip


def _software(python: Interpreter) -> Iterator[Check]:
    here = python.environment
    version = tuple(int(part) for part in (here.python or "0").split(".")[:2])
    oldest, oldest_torch = (".".join(map(str, v)) for v in (OLDEST, OLDEST_TORCH))
    old = version < OLDEST
    yield Check(
        name="python", state="missing" if old else "ok",
        found=f"{here.python}, {python.executable}",
        remedy=f"the job's side takes Python {oldest} or later: nothing can be measured" * old,
    )  # fmt: skip
    if here.torch is None:
        yield Check(
            name="torch", state="missing", found=python.torch_problem or "not there",
            remedy="name the job's own interpreter, as in `aiak-tune doctor -- python train.py`, "
            "or install torch there: without it there is no job to measure",
        )  # fmt: skip
        return
    old = tuple(int(part) for part in here.torch.split(".")[:2]) < OLDEST_TORCH
    yield Check(
        name="torch", state="missing" if old else "ok", found=here.torch,
        remedy=f"torch {oldest_torch} or later: nothing can be measured with this one" * old,
    )  # fmt: skip
    if here.gpu is not None and not here.triton:
        yield Check(
            name="triton", state="missing", found="not there",
            remedy="`pip install triton` in the job's environment: `compile` needs it on a GPU",
        )  # fmt: skip
    if here.gpu is None:
        yield _malloc(here.mallocs)
    compiler = next(
        (c for c in (os.environ.get("CXX", ""), "g++", "clang++") if c and shutil.which(c)), None
    )
    needed = here.gpu is None
    state: State = "ok" if compiler else "missing" if needed else "note"
    yield Check(
        name="C++ compiler", state=state, found=compiler or "none",
        remedy="" if compiler else "install g++: `compile` needs it on the CPU",
    )  # fmt: skip


def _malloc(others: tuple[str, ...]) -> Check:
    return Check(
        name="malloc", state="ok" if others else "note",
        found=", ".join(others) or "the C library's alone",
        remedy="" if others else "install tcmalloc (Debian: libtcmalloc-minimal4) or jemalloc: "
        "`allocator` has one more to try on the CPU",
    )  # fmt: skip


def _limits() -> Iterator[Check]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < FEW_FILES
    yield Check(
        name="open files", state="note" if few else "ok", found=f"{soft} (at most {hard})",
        remedy=f"`ulimit -n {FEW_FILES}` or more: many data workers run out of descriptors" * few,
    )  # fmt: skip
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    full = free < 2**28
    yield Check(
        name="temporary files", state="missing" if full else "ok",
        found=f"{_mib(free)} free in {folder}",
        remedy="free some space, or set TMPDIR to another disk: runs keep their records there"
        * full,
    )  # fmt: skip


def _number(place: Path) -> int | None:
    try:
        text = place.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None  # "max": no limit


def _mib(value: int) -> str:
    return f"{value / 2**30:,.1f} GiB" if value >= 2**30 else f"{value / 2**20:,.0f} MiB"
