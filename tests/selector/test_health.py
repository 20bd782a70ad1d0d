"""Each lack of a machine is seen, and one that is not there is not."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from aiak_tune.profiles.workload import Environment
from aiak_tune.selector import health
from aiak_tune.selector.health import Check, check_all
from aiak_tune.selector.interpreter import Interpreter
from aiak_tune.selector.storage import ReadTest, filesystem_of, read_test

READ = ReadTest(folder="/data", filesystem="ext4", read_bytes=10**8, seconds=0.1, method="O_DIRECT")


def checks(told: dict[str, Any] | None = None, **changes: Any) -> dict[str, Check]:
    here = {"python": "3.11.7", "torch": "2.13.0", "cpu": "Some CPU", "cores": 8, **changes}
    python = Interpreter(
        executable="/venv/bin/python", environment=Environment(**here), **told or {}
    )
    return {check.name: check for check in check_all(python, READ)}


GPU: dict[str, Any] = {
    "gpu": "NVIDIA H200",
    "gpu_count": 1,
    "driver": "580.1",
    "cuda": "13.0",
    "triton": True,
}


@pytest.mark.parametrize(
    ("changes", "name", "said"),
    [
        ({"python": "3.8.2"}, "python", "Python 3.10 or later"),
        ({"torch": None}, "torch", "there is no job to measure"),
        ({"torch": "2.1.0"}, "torch", "torch 2.6 or later"),
        ({**GPU, "cuda": None}, "driver and CUDA", "the job trains on the CPU"),
        ({**GPU, "triton": False}, "triton", "`pip install triton`"),
    ],
)
def test_what_is_missing_says_what_it_would_bring(
    changes: dict[str, Any], name: str, said: str
) -> None:
    found = checks(**changes)[name]
    assert found.state == "missing" and said in found.remedy


def test_a_driver_too_old_is_told_in_torchs_words() -> None:
    found = checks({"cuda_problem": "The NVIDIA driver on your system is too old"}, **GPU)
    assert "too old" in found["driver and CUDA"].found


def test_a_whole_gpu_machine_lacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SMALL_SHM", 0)
    found = checks(**GPU)
    assert [check.name for check in found.values() if check.state == "missing"] == []
    assert found["gpu"].found == "1 × NVIDIA H200"


def test_without_a_compiler_the_cpu_cannot_compile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert checks()["C++ compiler"].state == "missing"
    assert checks(**GPU)["C++ compiler"].state == "note"


def test_small_shared_memory_and_a_full_disk_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2**26, 2**26 - 4096, 4096))
    found = checks()
    assert found["/dev/shm"].state == "missing" and "--shm-size" in found["/dev/shm"].remedy
    assert found["temporary files"].state == "missing"


def test_the_containers_memory_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(health, "CGROUP", tmp_path)
    assert "container memory" not in checks()
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    (tmp_path / "memory.current").write_text(f"{2**29}\n")
    assert checks()["container memory"].state == "ok"
    (tmp_path / "memory.current").write_text(f"{2**30 - 1}\n")
    assert checks()["container memory"].state == "note"


def test_a_read_test_leaves_nothing_and_says_how(tmp_path: Path) -> None:
    done = read_test(tmp_path, size=2**22)
    assert done.read_bytes == 2**22 and done.bytes_per_s and done.method
    assert list(tmp_path.iterdir()) == []


def test_storage_that_cannot_be_written_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert read_test(tmp_path / "none", size=2**20).problem
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2**30, 2**30, 0))
    full = read_test(tmp_path)
    assert full.problem and "nearly full" in full.problem and full.bytes_per_s is None


def test_file_systems_are_told_apart() -> None:
    assert filesystem_of(Path("/proc")) == "proc"
    assert filesystem_of(Path("/dev/shm")) == "tmpfs"


def test_another_malloc_is_worth_having_on_a_cpu_alone() -> None:
    assert "libtcmalloc-minimal4" in checks()["malloc"].remedy
    assert checks(mallocs=("libjemalloc.so.2",))["malloc"].found == "libjemalloc.so.2"
    assert "malloc" not in checks(**GPU)
