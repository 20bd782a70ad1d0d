"""On a real GPU: the slice and its breakdown, the three entries, a whole tuning."""

import json
import statistics
import sys
from pathlib import Path

import pytest
from contracts.memory_store import MemoryTuningStore

from aiak_tune.agent.spec import SlicePlan
from aiak_tune.optimizations.amp import Amp
from aiak_tune.optimizations.data_workers import DataWorkers
from aiak_tune.optimizations.fused_optimizer import FusedOptimizer
from aiak_tune.profiles.category import Category
from aiak_tune.selector.profile_job import profile_job
from aiak_tune.selector.reporter import Silent
from aiak_tune.selector.request import Request
from aiak_tune.selector.results import Measured
from aiak_tune.selector.tune import tune

pytestmark = pytest.mark.gpu
JOB = Path(__file__).with_name("job_truth.py")


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("TRUTH", str(tmp_path / "truth.jsonl"))


def test_the_breakdown_agrees_with_the_jobs_own_clock(tmp_path: Path) -> None:
    request = Request(command=(sys.executable, str(JOB)), slice=SlicePlan(steps=40))
    profile, findings = profile_job(request, reporter=Silent())
    rows = [json.loads(line) for line in (tmp_path / "truth.jsonl").read_text().splitlines()]
    counted = rows[profile.steps.warmup : profile.steps.warmup + profile.steps.counted]
    step = statistics.mean(r[0] for r in counted)
    fetch = statistics.mean(r[1] for r in counted)
    assert profile.breakdown_ms is not None
    assert sum(profile.breakdown_ms.values()) == pytest.approx(profile.steps.step_ms.mean)
    assert profile.steps.step_ms.mean == pytest.approx(step, rel=0.02)
    # The job synchronises at each step's end, so all of a fetch is waiting.
    assert profile.breakdown_ms[Category.DATA_WAIT] == pytest.approx(fetch, abs=0.02 * step)
    assert profile.breakdown_ms[Category.COMPUTE] > 0
    assert profile.environment.gpu and profile.memory_bytes
    assert {f.optimization for f in findings if f.fits} >= {"data-workers"}


def test_a_tuning_finds_what_an_input_bound_job_lacks() -> None:
    request = Request(
        command=(sys.executable, str(JOB)), trials=3, only=("data-workers",), max_pairs=3
    )
    result = tune(request, store=MemoryTuningStore(), reporter=Silent())
    assert result.verdict == "faster", result.verdict_reason
    assert result.best is not None
    assert result.best.parity.passed
    assert result.best.settings["data-workers"]["pin_memory"] is True
    assert all(isinstance(t, Measured) for t in result.trials[:2])


def test_amp_stays_within_twice_autocasts_own_error() -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 8)).cuda()
    x = torch.randn(128, 64, device="cuda")
    exact = model.double()(x.double())
    model.float()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        yard = (model(x).double() - exact).norm()
    applied = Amp().apply(model, {"dtype": "bfloat16"})
    assert applied is not None
    out = model(x)
    assert out.dtype == torch.float32
    assert (out.double() - exact).norm() <= 2 * yard
    assert applied.effect()
    applied.undo()
    assert (model(x).double() - exact).norm() < yard / 10


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_fused_updates_equal_plain_ones(name: str) -> None:
    import torch

    def train(fused: bool, before: int) -> list[torch.Tensor]:
        torch.manual_seed(0)
        weights = [torch.randn(33, 65, device="cuda").requires_grad_() for _ in range(3)]
        options = {"momentum": 0.9} if name == "SGD" else {}
        optimizer = getattr(torch.optim, name)(weights, lr=0.01, **options)
        for step in range(12):
            for w in weights:
                w.grad = torch.randn(w.shape, device="cuda")
            if fused and step == before:
                applied = FusedOptimizer().apply(optimizer, {"fused": True})
                assert applied is not None or before > 0
            optimizer.step()
        return [w.detach() for w in weights]

    for before in (0, 5):  # at the first step, and with state already there
        for plain, fused in zip(train(False, 0), train(True, before), strict=True):
            torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-6)


def test_adagrad_is_left_alone_where_its_class_refuses_the_kernel() -> None:
    import torch

    weight = torch.randn(9, device="cuda").requires_grad_()
    optimizer = torch.optim.Adagrad([weight])
    weight.grad = torch.randn(9, device="cuda")
    applied = FusedOptimizer().apply(optimizer, {"fused": True})
    optimizer.step()  # whatever was decided, the job goes on
    assert applied is None or applied.effect()


def test_workers_pin_their_batches() -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=8)
    params = {
        "num_workers": 2, "prefetch_factor": 2, "pin_memory": True, "persistent_workers": True,
    }  # fmt: skip
    applied = DataWorkers().apply(loader, params)
    assert applied is not None
    batches = [b[0] for b in loader]
    assert all(b.is_pinned() for b in batches)
    assert torch.equal(torch.cat(batches), torch.arange(64.0))
