"""What the host has, read from /proc and /sys: processors, memory, driver. Standard library."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from aiak_tune.profiles.topology import numa_nodes

MALLOCS = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libjemalloc.so.2")
LIBRARIES = ("lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib", "usr/lib/*-linux-gnu")


def host_facts() -> dict[str, Any]:
    """Return the environment's fields that the host alone tells; what it does not say is None."""
    return {
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "ram_bytes": _memory_bytes(),
        "shm_free_bytes": _shm_free_bytes(),
        "driver": _nvidia_driver(),
        "mallocs": preloadable(),
        "numa_nodes": len(numa_nodes(os.sched_getaffinity(0))),
    }


def usable_cores() -> int:
    """Return the cores this process may use: its affinity, and the container's share of time."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores


def preloadable() -> tuple[str, ...]:
    """Return those of MALLOCS that the system's loader finds by their names."""
    places = [folder for place in LIBRARIES for folder in Path("/").glob(place)]
    return tuple(m for m in MALLOCS if any((folder / m).exists() for folder in places))


def _cpu_name() -> str | None:
    return _match("/proc/cpuinfo", r"^model name\s*:\s*(.+)$")


def _memory_bytes() -> int | None:
    total = _match("/proc/meminfo", r"^MemTotal:\s*(\d+) kB")
    return None if total is None else int(total) * 1024


def _shm_free_bytes() -> int | None:
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return None


def _nvidia_driver() -> str | None:
    return _match("/proc/driver/nvidia/version", r"Module\s+(?:for \S+\s+)?([\d.]+)")


def _match(path: str, pattern: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return found.group(1).strip() if found else None


def gpus() -> dict[str, Any]:
    """Return name and number of NVIDIA GPUs as the driver's /proc files tell; {} without any."""
    names = []
    for place in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        name = _match(str(place), r"^Model:\s*(.+)$")
        if name:
            names.append(name)
    return {"gpu": names[0], "gpu_count": len(names)} if names else {}
