"""On a real GPU: what is set for the whole process, against what the device then does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import QUICK, record_of
from torch import Tensor, nn

from aiak_tune.agent import probe
from aiak_tune.agent.records import SliceRecord
from aiak_tune.agent.spec import RunSpec, SlicePlan
from aiak_tune.ops import switches, tf32
from aiak_tune.optimizations.allocator import GPU_VARIABLES
from aiak_tune.optimizations.base import Settings
from aiak_tune.optimizations.catalog import by_name
from aiak_tune.optimizations.cudnn_benchmark import benchmark
from aiak_tune.optimizations.tf32 import VARIABLES, allow_tf32
from aiak_tune.profiles import topology
from aiak_tune.selector.launch import launch
from aiak_tune.selector.variables import variables_of

pytestmark = pytest.mark.gpu
EXPANDABLE: Settings = {"allocator": {"use": "expandable_segments"}}
PROCESS: Any = {"tf32": {"allow": True}, "cudnn-benchmark": {"benchmark": True}}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*VARIABLES, *GPU_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    yield
    for _, told in tuple(switches._listeners):  # a slice ends with its settings in force
        told("the end of the test")
    assert not tf32.in_force() and not torch.backends.cudnn.benchmark


def factors() -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    return tuple(torch.randn(512, 512, generator=generator, device="cuda") for _ in "ab")  # type: ignore[return-value]


def test_tf32_rounds_products_and_undoes_to_the_bit() -> None:
    a, b = factors()
    exact, plain = a.double() @ b.double(), a @ b
    here = torch.device("cuda", torch.cuda.current_device())
    assert not tf32.rounds(here)

    def off(product: Tensor) -> float:
        return float((product.double() - exact).norm() / exact.norm())

    change = allow_tf32()
    assert change is not None and change.plain is not None
    assert tf32.rounds(here) and 1e-5 < off(a @ b) < 2e-3 and off(plain) < 5e-6
    assert change.effect() == "float32 matrix products rounded to TF32"
    with change.plain():
        assert torch.equal(a @ b, plain) and not tf32.rounds(here)
    assert not torch.equal(a @ b, plain)
    change.undo()
    assert torch.equal(a @ b, plain)


def test_a_look_at_tf32_breaks_no_capture() -> None:
    """Under a plan the agent looks at a step's end, which may lie in a job's own CUDA graph."""
    a, b = factors()
    change = allow_tf32()
    assert change is not None and change.effect()
    graph = torch.cuda.CUDAGraph()
    a @ b
    with torch.cuda.graph(graph):
        product = a @ b
        assert change.effect() == "float32 matrix products rounded to TF32"
    graph.replay()
    torch.testing.assert_close(product, a @ b)
    change.undo()


def test_tf32_passes_the_comparison_in_the_process() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
    x = torch.randn(512, 256, device="cuda")
    change = allow_tf32()
    assert change is not None and change.plain is not None
    answer = probe.model_probe(torch, model, (x,), {}, [change.plain])
    change.undo()
    assert answer.problem is None and answer.error is not None and answer.yard is not None
    assert 1e-6 < answer.error < answer.yard, "bfloat16 keeps fewer digits than TF32"


def test_nvidias_own_variable_against_tf32_is_seen_by_the_probe() -> None:
    """The entry leaves it alone; here it is set where the entry cannot see it."""
    ask = (
        "import os, torch; os.environ['NVIDIA_TF32_OVERRIDE'] = '0'\n"
        "from aiak_tune.optimizations.tf32 import allow_tf32\n"
        "change = allow_tf32(); torch.zeros(1, device='cuda')\n"
        "try: print(change.effect())\nexcept Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=120)
    assert done.stdout == "float32 matrix products keep all their digits on this GPU\n", done.stderr


def kernels(call: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return sum("CUDA" in str(e.device_type) for e in seen.events() or ())


def test_cudnn_tries_its_algorithms_once_for_each_shape() -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(32, 64, 3, padding=1).cuda()

    def first_and_second(size: int) -> tuple[int, int]:
        x = torch.randn(8, 32, size, size, device="cuda")
        with torch.no_grad():
            return kernels(lambda: convolution(x)), kernels(lambda: convolution(x))

    kernels(lambda: convolution(torch.randn(8, 32, 20, 20, device="cuda")))
    x = torch.randn(8, 32, 56, 56, device="cuda")
    plain = convolution(x).detach()
    by_rule, _ = first_and_second(48)
    change = benchmark()
    assert change is not None
    first, second = first_and_second(40)
    assert first > by_rule and first > second, "it tries, and remembers"
    torch.testing.assert_close(convolution(x).detach(), plain, rtol=2e-3, atol=2e-3)
    assert str(change.effect()).startswith("cuDNN ")
    change.undo()
    assert first_and_second(44)[0] < first


def test_both_are_in_force_in_a_job_to_the_end_of_its_slice(tmp_path: Path) -> None:
    def job() -> None:
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 14 * 14, 10)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(40):
            model(torch.randn(16, 3, 16, 16, device="cuda")).square().mean().backward()
            optimizer.step()

    record = record_of(tmp_path, job, QUICK, PROCESS)
    assert record.effects["tf32"] == "float32 matrix products rounded to TF32"
    assert str(record.effects["cudnn-benchmark"]).endswith("chose its algorithms by trial")
    assert record.facts["precision_by"] is None and record.facts["cudnn_benchmark_by"] is None
    assert not {name for name, _ in record.warnings} & PROCESS.keys()


JOB = """
import sys, torch

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
step = 0
while True:
    step += 1
    rows = 64 if sys.argv[1] == "same" else 4096 * step  # larger than all before
    optimizer.zero_grad()
    model(torch.randn(rows, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
"""


def measured(tmp_path: Path, rows: str, settings: Settings) -> SliceRecord:
    script, run_dir = tmp_path / "job.py", tmp_path / "run"
    script.write_text(JOB)
    run_dir.mkdir()
    plan = SlicePlan(parity=0, warmup=6, steps=8, profiled=0, min_window_s=0.0)
    spec = RunSpec(
        run_dir=str(run_dir), settings=settings, slice=plan,
        environment=variables_of(settings, by_name),
    )  # fmt: skip
    outcome = launch((sys.executable, str(script), rows), spec)
    assert outcome.results, outcome.tail
    return outcome.results[0]


def test_expandable_segments_are_really_there_in_the_job(tmp_path: Path) -> None:
    record = measured(tmp_path, "same", EXPANDABLE)
    assert "expandable segments hold" in str(record.effects["allocator"])
    assert record.facts["allocator_by"] == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@pytest.mark.parametrize("rows", ["same", "more"])
def test_only_a_job_that_needs_more_and_more_asks_the_driver(tmp_path: Path, rows: str) -> None:
    record = measured(tmp_path, rows, {})
    assert (record.facts["device_requests"] > 0) == (rows == "more")
    assert record.facts["allocator_by"] is None


def test_the_gpus_of_the_bus_are_those_that_torch_sees() -> None:
    """Ranks find their NUMA node by the GPU's number, before CUDA has started."""
    gpus = topology.gpu_nodes()
    if not gpus:
        pytest.skip("the driver shows no GPU under /proc here")
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        assert len(gpus) == torch.cuda.device_count()


def test_segments_that_do_not_expand_are_no_effect() -> None:
    torch.zeros(1, device="cuda")
    applied = by_name["allocator"].apply(dict(os.environ), EXPANDABLE["allocator"])
    assert applied is not None and applied.effect() is None
