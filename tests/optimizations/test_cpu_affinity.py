"""`cpu-affinity`: who gets which cores on machines drawn in a folder, and real binding here."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import QUICK, plain_job, record_of

from aiak_tune.optimizations import cpu_affinity
from aiak_tune.optimizations.base import NoEffectError, Settings
from aiak_tune.optimizations.catalog import by_name, judge
from aiak_tune.optimizations.cpu_affinity import BEFORE, VARIABLES, bind, place_of_rank
from aiak_tune.optimizations.examples import LOADER, ON_CPU, PLAIN
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.fingerprint import job_fingerprint
from aiak_tune.profiles.topology import (
    GPU_NODE,
    GPU_SHARE,
    SHARE,
    as_text,
    cores_in,
    cores_of_rank,
    gpu_nodes,
    homes_of,
    numa_nodes,
)
from aiak_tune.profiles.workload import JobFacts, WorkloadProfile
from aiak_tune.selector.measure import job_of

ENTRY = by_name["cpu-affinity"]
SHARED: Settings = {"cpu-affinity": {"cores": SHARE}}
HERE = frozenset(os.sched_getaffinity(0))
two_cores = pytest.mark.skipif(len(HERE) < 2, reason="this machine gives us one core only")


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*VARIABLES, "OMP_NUM_THREADS", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    yield
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), HERE)
    torch.set_num_threads(threads)
    os.environ.pop(BEFORE, None)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two NUMA nodes of four physical cores with two threads each; four GPUs, two by each node."""

    def write(place: str, text: str) -> None:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)

    write("sys/devices/system/node/node0/cpulist", "0-3,8-11\n")
    write("sys/devices/system/node/node1/cpulist", "4-7,12-15\n")
    for core in range(16):
        place = f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        write(place, f"{core % 8},{core % 8 + 8}\n")
    for bus, node in (("19", 0), ("3b", 0), ("9a", 1), ("bb", 1)):
        write(f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information", "Model: H200\n")
        write(f"sys/bus/pci/devices/0000:{bus}:00.0/numa_node", f"{node}\n")
    return tmp_path


def test_core_lists_are_read_and_written_as_the_kernels() -> None:
    assert cores_in("0-3,8\n") == {0, 1, 2, 3, 8} and cores_in("\n") == frozenset()
    assert as_text({8, 0, 1, 3, 2}) == "0-3,8"


def test_a_nodes_cores_are_the_allowed_ones_by_physical_core(machine: Path) -> None:
    assert numa_nodes({0, 1, 8, 9, 5}, machine) == {0: (0, 8, 1, 9), 1: (5,)}
    assert numa_nodes(range(16), machine)[1] == (4, 12, 5, 13, 6, 14, 7, 15)
    assert numa_nodes({2, 5}, machine / "elsewhere") == {0: (2, 5)}
    assert gpu_nodes(machine) == [0, 0, 1, 1] and gpu_nodes(machine / "elsewhere") == []


@pytest.mark.parametrize(
    ("use", "rank", "ranks", "cores"),
    [
        (SHARE, 0, 2, "0-3,8-11"),
        (SHARE, 1, 2, "4-7,12-15"),
        (SHARE, 1, 4, "2-3,10-11"),
        (SHARE, 2, 3, "5-7,13-15"),  # 5 or 6 each, and none that two share
        (GPU_NODE, 0, 1, "0-3,8-11"),
        (GPU_NODE, 3, 4, "4-7,12-15"),
        (GPU_SHARE, 2, 4, "4-5,12-13"),
        (GPU_SHARE, 3, 4, "6-7,14-15"),
        (GPU_SHARE, 2, 3, "4-7,12-15"),  # alone by its node
    ],
)
def test_each_rank_gets_whole_cores_near_its_gpu(
    machine: Path, use: str, rank: int, ranks: int, cores: str
) -> None:
    homes = homes_of(ranks, None, machine)
    found = cores_of_rank(use, range(16), rank, ranks, homes, machine)
    assert found == cores_in(cores)


@pytest.mark.parametrize("use", [SHARE, GPU_SHARE])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_no_core_is_given_twice_and_none_outside_of_what_is_allowed(
    machine: Path, use: str, ranks: int
) -> None:
    allowed = {0, 1, 2, 3, 4, 5, 6, 7, 8, 13}
    homes = homes_of(ranks, "3,2,1,0", machine)
    given = [cores_of_rank(use, allowed, r, ranks, homes, machine) for r in range(ranks)]
    assert sum(map(len, given)) == len(frozenset().union(*given))
    assert frozenset().union(*given) <= allowed
    if use == SHARE:
        assert frozenset().union(*given) == allowed


@pytest.mark.parametrize(
    ("visible", "homes"),
    [("2", [1]), ("3,0", [1, 0]), ("GPU-5c1b", [None]), ("7", [None]), ("", [None])],
)
def test_visible_devices_pick_the_gpus(
    machine: Path, visible: str, homes: list[int | None]
) -> None:
    assert homes_of(len(homes), visible, machine) == homes


def test_what_cannot_be_shared_out_is_said(machine: Path) -> None:
    with pytest.raises(LookupError, match="does not tell which cores"):
        cores_of_rank(GPU_NODE, range(16), 0, 1, [None], machine)
    with pytest.raises(LookupError, match="3 ranks share 2 cores, less than one each"):
        cores_of_rank(SHARE, {0, 1}, 0, 3, [None] * 3, machine)


def ranks(
    count: int, nodes: int | None = 1, base: WorkloadProfile = ON_CPU, **job: Any
) -> WorkloadProfile:
    environment = replace(base.environment, ranks_per_node=count, numa_nodes=nodes)
    return replace(base, environment=environment, job=replace(base.job, **job))


@pytest.mark.parametrize(
    ("profile", "why"),
    [
        (ranks(4, model=None), "no model"),
        (ranks(4, affinity_by="OMP_PLACES=cores"), "chosen: OMP_PLACES=cores"),
        (ranks(1, nodes=4), "one rank computes on all cores"),
        (ranks(1, base=PLAIN), "nothing to keep apart"),
        (ranks(1, nodes=None, base=PLAIN), "nothing to keep apart"),
        (ranks(17), "less than one each"),
        (ranks(4, loader=replace(LOADER, num_workers=6)), "6 data workers a rank would stay on 4"),
    ],
)
def test_it_says_why_ranks_go_on_moving(profile: WorkloadProfile, why: str) -> None:
    finding = ENTRY.check(profile)
    assert not finding.fits and why in finding.reason


@pytest.mark.parametrize(
    ("profile", "cores"),
    [
        (ranks(4, nodes=2), (SHARE,)),
        (ranks(2, base=PLAIN), (SHARE,)),
        (ranks(1, nodes=2, base=PLAIN), (GPU_NODE,)),
        (ranks(8, nodes=2, base=PLAIN), (GPU_SHARE, GPU_NODE)),
    ],
)
def test_what_is_tried_suits_the_machine(profile: WorkloadProfile, cores: tuple[str, ...]) -> None:
    finding = ENTRY.check(profile)
    assert finding.fits and finding.space == {"cores": cores}


def test_kernels_do_not_mind_the_cores() -> None:
    profile = ranks(2, base=PLAIN)
    busy = replace(profile, breakdown_ms={Category.COMPUTE: profile.steps.step_ms.mean})
    assert not judge(ENTRY, busy).fits


def test_a_rank_is_told_by_its_launchers_variables() -> None:
    assert place_of_rank({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}) == (3, 8)
    assert place_of_rank({"WORLD_SIZE": "16", "RANK": "5"}) == (0, 1), "may be a pod's"


@two_cores
def test_all_threads_move_and_come_back() -> None:
    told, stop = threading.Event(), threading.Event()
    seen: list[int] = []

    def waits() -> None:
        seen.append(threading.get_native_id())
        told.set()
        stop.wait(60)

    thread = threading.Thread(target=waits)
    thread.start()
    told.wait(60)
    one = frozenset({min(HERE)})
    torch.set_num_threads(2)
    change = bind(one, HERE)
    assert change is not None
    assert os.sched_getaffinity(0) == os.sched_getaffinity(seen[0]) == one
    assert torch.get_num_threads() == 1 and os.environ[BEFORE] == as_text(HERE)
    assert change.effect() == (
        f"on cores {min(HERE)} of {as_text(HERE)}, on 1 threads in place of 2"
    )
    change.undo()
    assert os.sched_getaffinity(0) == os.sched_getaffinity(seen[0]) == HERE
    assert torch.get_num_threads() == 2 and BEFORE not in os.environ
    stop.set()
    thread.join()


@two_cores
def test_a_rank_that_binds_itself_is_left_alone_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr("aiak_tune.agent.ranks.WAIT_S", 0.0)  # there is no other rank

    def binds_itself() -> None:
        os.sched_setaffinity(0, {min(HERE)})
        plain_job()

    record = record_of(tmp_path, binds_itself, QUICK, SHARED)
    assert record.effects == {"cpu-affinity": None}
    assert f"the job moved itself to cores {min(HERE)}" in record.warnings[0][1]
    facts = replace(record, facts={**record.facts, "cores": 1})
    os.sched_setaffinity(0, HERE)
    base = JobFacts(fingerprint=job_fingerprint(("x",), tmp_path), command=("x",), name="x")
    assert job_of(facts, base).affinity_by == f"it is bound to 1 of {len(HERE)}"


def test_one_rank_keeps_all_cores_and_a_users_choice_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert record_of(tmp_path, plain_job, QUICK, SHARED).effects == {"cpu-affinity": None}
    assert os.sched_getaffinity(0) == HERE
    for name in VARIABLES:
        monkeypatch.setenv(name, "1")
        with pytest.raises(NoEffectError, match=f"{name}=1 is set for the job"):
            ENTRY.apply(torch, SHARED["cpu-affinity"])
        monkeypatch.delenv(name)


RANK = """
import os, sys
from multiprocessing import get_context
from aiak_tune.optimizations.catalog import by_name


def cores():
    return sorted(os.sched_getaffinity(0))


def main():
    import torch
    change = by_name["cpu-affinity"].apply(torch, {"cores": "share"})
    with get_context("fork").Pool(1) as pool:
        worker = pool.apply(cores)
    told = (cores(), worker, change.effect())
    open(f"{sys.argv[1]}/{os.environ['LOCAL_RANK']}", "w").write(repr(told))


main()
"""
LAUNCHER = """
import os, runpy, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # as one that was bound itself
sys.argv = ["torchrun", "--standalone", "--nproc-per-node", "2", *sys.argv[1:]]
runpy.run_module("torch.distributed.run", run_name="__main__")
"""


@two_cores
def test_ranks_share_what_their_launcher_had_and_their_workers_stay_with_them(
    tmp_path: Path,
) -> None:
    two = sorted(HERE)[:2]
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    subprocess.run(
        [sys.executable, str(tmp_path / "launcher.py"), str(tmp_path / "rank.py"), str(tmp_path)],
        env={**os.environ, BEFORE: as_text(two)}, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    for rank, core in enumerate(two):
        wanted = ([core], [core], f"on cores {core} of {as_text(two)}")
        assert (tmp_path / str(rank)).read_text() == repr(wanted)


def test_by_hand_lines_bind_as_the_entry_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(min(2, len(HERE))))
    lines = cpu_affinity.BY_HAND[SHARE]
    if len(HERE) < 2:
        pytest.skip("this machine gives us one core only")
    exec(lines, {})
    by_hand = os.sched_getaffinity(0)
    assert by_hand == cores_of_rank(SHARE, HERE, 1, 2, [None, None])
