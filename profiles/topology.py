"""Which cores lie together, and which GPU at which: from /sys and /proc. Standard library."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

ROOT = Path("/")
# How the cores are shared out among ranks: those near the rank's GPU, with the others there or cut
# up among them; all cores, cut up.
GPU_NODE, GPU_SHARE, SHARE = "gpu_node", "gpu_share", "share"


def cores_in(text: str) -> frozenset[int]:
    """Return the numbers in the kernel's list form, as `0-3,8`."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            low, _, high = part.partition("-")
            found |= set(range(int(low), int(high or low) + 1))
    return frozenset(found)


def as_text(cores: Collection[int]) -> str:
    """Return core numbers in the kernel's list form."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def numa_nodes(allowed: Collection[int], root: Path = ROOT) -> dict[int, tuple[int, ...]]:
    """Return each NUMA node's allowed cores; one node of all where the kernel does not tell.

    The threads of a physical core stand side by side, so that a run of them is whole cores.
    """
    found = {}
    for place in root.glob("sys/devices/system/node/node[0-9]*"):
        cores = _read(place / "cpulist")
        mine = sorted(cores & set(allowed), key=lambda core: (_first_sibling(core, root), core))
        if mine:
            found[int(place.name.removeprefix("node"))] = tuple(mine)
    if sum(map(len, found.values())) != len(allowed):
        return {0: tuple(sorted(allowed, key=lambda core: (_first_sibling(core, root), core)))}
    return dict(sorted(found.items()))


def gpu_nodes(root: Path = ROOT) -> list[int | None]:
    """Return the NUMA node of each NVIDIA GPU that is here, in the bus's order, None: not told."""
    found: list[int | None] = []
    for place in sorted(root.glob("proc/driver/nvidia/gpus/*")):
        try:
            node = int((root / "sys/bus/pci/devices" / place.name / "numa_node").read_text())
        except (OSError, ValueError):
            node = -1
        found.append(node if node >= 0 else None)
    return found


def _first_sibling(core: int, root: Path) -> int:
    place = root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
    return min(_read(place), default=core)


def _read(place: Path) -> frozenset[int]:
    try:
        return cores_in(place.read_text())
    except (OSError, ValueError):
        return frozenset()


def homes_of(ranks: int, visible: str | None, root: Path = ROOT) -> list[int | None]:
    """Return the NUMA node of each rank's GPU, as `visible` (CUDA_VISIBLE_DEVICES) picks them.

    None where the system does not tell, or GPUs are picked by name.
    """
    gpus = gpu_nodes(root)
    try:
        picked = list(range(len(gpus)) if visible is None else map(int, visible.split(",")))
        return [gpus[picked[rank]] for rank in range(ranks)]
    except (ValueError, IndexError):
        return [None] * ranks


def cores_of_rank(
    use: str,
    allowed: Collection[int],
    rank: int,
    ranks: int,
    homes: Sequence[int | None],
    root: Path = ROOT,
) -> frozenset[int]:
    """Return the cores for one rank.

    Args:
        use: GPU_NODE, GPU_SHARE or SHARE.
        allowed: what all ranks may use together.
        rank: the rank's number on this machine, which is its GPU's too.
        ranks: how many there are here.
        homes: (ranks,), the NUMA node of each one's GPU.
        root: of /sys.

    Raises:
        LookupError: they cannot be shared out so here.
    """
    nodes = numa_nodes(allowed, root)
    if use == SHARE:
        return _part([core for cores in nodes.values() for core in cores], rank, ranks)
    home = homes[rank]
    if home is None or home not in nodes:
        raise LookupError("the system does not tell which cores are near the rank's GPU")
    if use == GPU_NODE:
        return frozenset(nodes[home])
    mates = [mate for mate in range(ranks) if homes[mate] == home]
    return _part(nodes[home], mates.index(rank), len(mates))


def _part(cores: Sequence[int], number: int, parts: int) -> frozenset[int]:
    part = cores[number * len(cores) // parts : (number + 1) * len(cores) // parts]
    if not part:
        raise LookupError(f"{parts} ranks share {len(cores)} cores, less than one each")
    return frozenset(part)
