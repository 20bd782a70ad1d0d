"""A whole job under a plan: settings applied, the model checked, then nothing of ours runs."""

from __future__ import annotations

import copy
import io
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import QUICK, Points, guesting, net, record_of, train
from torch import nn
from torch.utils.data import DataLoader

from aiak_tune.agent.settings import Applier
from aiak_tune.agent.spec import RunSpec
from aiak_tune.agent.whole import SAFE_STEPS, WholeRun
from aiak_tune.optimizations.base import Settings

ALL: Any = {
    "data-workers": {
        "num_workers": 1, "prefetch_factor": 2, "pin_memory": False, "persistent_workers": False,
    },
    "amp": {"dtype": "bfloat16"},
    "fused-optimizer": {},
}  # fmt: skip


def run(
    run_dir: Path,
    job: Callable[[], object],
    fingerprint: str | None = None,
    settings: Settings = ALL,
) -> dict[str, Any] | None:
    """Run a job under a plan; return what the agent told."""
    with guesting(run_dir):
        spec = RunSpec(run_dir=str(run_dir), settings=settings, model_fingerprint=fingerprint)
        WholeRun(torch, spec, Applier(settings)).arm()
        job()
        assert not list(run_dir.glob("fault-*"))
    place = run_dir / "applied-0.json"
    return json.loads(place.read_text()) if place.exists() else None


class Job:
    """Two epochs of `steps` each; what it made can be looked at afterwards."""

    def __init__(self, steps: int = 15, width: int = 8, vary: bool = False, dummy: bool = False):
        self.steps, self.width, self.vary, self.dummy = steps, width, vary, dummy
        self.after: list[dict[str, Any]] = []

    def __call__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, self.width), nn.ReLU(), nn.Linear(self.width, 1))
        if self.dummy:
            self.model(torch.ones(1, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        batches: Any = [list(range(1 + (i % 3 if self.vary else 3))) for i in range(self.steps)]
        data = Points()
        self.loaders = [DataLoader(data, batch_sampler=batches) for _ in range(2)]
        for loader in self.loaders:
            train(loader, self.model, self.optimizer, 1, self.look)

    def look(self, step: int) -> None:
        self.after.append({"call": vars(nn.Module)["__call__"], "step": step})


def fingerprint_of(tmp_path: Path, job: Job) -> str:
    folder = tmp_path / "slice"
    folder.mkdir()
    facts = record_of(folder, job, QUICK).facts
    assert ("vary" in str(job.vary)) or facts["model_fingerprint"]
    return str(facts["model_fingerprint"])


@pytest.mark.parametrize("vary", [False, True])
@pytest.mark.parametrize("dummy", [False, True])
def test_the_plans_own_model_gets_every_setting(tmp_path: Path, vary: bool, dummy: bool) -> None:
    """With batches of one shape, of any shape, and a first forward that is no training."""
    expected = fingerprint_of(tmp_path, Job(vary=vary, dummy=dummy))
    job = Job(vary=vary, dummy=dummy)
    told = run(tmp_path, job, expected)
    assert told is not None and told["stopped"] is None and told["updates"] == SAFE_STEPS
    assert all(told["effects"].values()) and not told["problems"]
    assert job.optimizer.param_groups[0]["fused"] is True
    assert [loader.num_workers for loader in job.loaders] == [1, 1], "epoch 2 too"
    assert job.model(torch.ones(2, 4)).dtype is torch.float32


@pytest.mark.parametrize("what", ["model", "optimizer"])
def test_another_model_stops_what_is_not_applied_yet(tmp_path: Path, what: str) -> None:
    expected = fingerprint_of(tmp_path, Job())
    job = Job(width=9 if what == "model" else 8)
    if what == "optimizer":
        plain = torch.optim.AdamW
        torch.optim.AdamW = torch.optim.Adam  # type: ignore[assignment, misc]
    try:
        told = run(tmp_path, job, expected)
    finally:
        if what == "optimizer":
            torch.optim.AdamW = plain  # type: ignore[misc]
    assert told is not None and "not the one that the plan was made for" in told["stopped"]
    assert told["effects"]["amp"] is None and told["effects"]["fused-optimizer"] is None
    assert not job.optimizer.param_groups[0]["fused"]
    assert job.loaders[1].num_workers == 0, "made after the mismatch"
    assert len(job.after) == 30, "the job runs on"


def test_a_plan_without_a_fingerprint_is_applied(tmp_path: Path) -> None:
    told = run(tmp_path, Job(width=3))
    assert told is not None and told["stopped"] is None and all(told["effects"].values())


def test_after_the_first_steps_the_hooks_are_gone(tmp_path: Path) -> None:
    plain_call = vars(nn.Module)["__call__"]
    plain_init = vars(torch.optim.Optimizer)["__init__"]
    threads = set(threading.enumerate())
    job = Job()

    def whole() -> None:
        job()
        assert vars(torch.optim.Optimizer)["__init__"] is plain_init
        assert "__call__" not in vars(nn.Sequential)

    run(tmp_path, whole, settings={"fused-optimizer": {}})
    calls = [seen["call"] is plain_call for seen in job.after]
    assert calls == [False] * 2 + [True] * 28
    assert set(threading.enumerate()) == threads


def test_the_model_is_saved_and_copied_as_without_us(tmp_path: Path) -> None:
    job = Job()

    def whole() -> None:
        job()
        keys = ["0.weight", "0.bias", "2.weight", "2.bias"]
        assert list(job.model.state_dict()) == keys
        assert not job.model._forward_pre_hooks and not job.model._forward_hooks
        file = io.BytesIO()
        torch.save(job.model, file)
        file.seek(0)
        for twin in (
            copy.deepcopy(job.model),
            pickle.loads(pickle.dumps(job.model)),
            torch.load(file, weights_only=False),
        ):
            assert type(twin) is nn.Sequential and list(twin.state_dict()) == keys
        pickle.dumps(job.optimizer)
        optimizer = torch.optim.AdamW(job.model.parameters())
        optimizer.load_state_dict(job.optimizer.state_dict())

    assert run(tmp_path, whole) is not None


def test_a_process_that_never_trains_leaves_no_file_and_no_thread(tmp_path: Path) -> None:
    threads = set(threading.enumerate())

    def look() -> None:
        model = net()
        with torch.no_grad():
            for x, _ in DataLoader(Points(16), batch_size=4):
                model(x)

    assert run(tmp_path, look, "model1:other") is None
    assert list(tmp_path.iterdir()) == [] and set(threading.enumerate()) == threads


def test_a_validation_before_training_is_not_the_training_loader(tmp_path: Path) -> None:
    job = Job()

    def whole() -> None:
        held_out = DataLoader(Points(16), batch_size=4)
        with torch.no_grad():
            assert len(list(held_out)) == 4
        job()
        list(held_out)
        assert held_out.num_workers == 0

    told = run(tmp_path, whole)
    assert told is not None and told["effects"]["data-workers"]
    assert [loader.num_workers for loader in job.loaders] == [1, 1]


def test_optimizers_of_the_job_are_not_kept_alive(tmp_path: Path) -> None:
    import weakref

    alive = []

    def look() -> None:
        alive.append(weakref.ref(torch.optim.SGD(net().parameters(), lr=1.0)))
        import gc

        gc.collect()
        assert alive[0]() is None

    run(tmp_path, look)


def test_another_torch_than_the_plans_gets_nothing(tmp_path: Path) -> None:
    with guesting(tmp_path):
        spec = RunSpec(
            run_dir=str(tmp_path),
            settings={"fused-optimizer": {"fused": True}},
            versions={"torch": "1.13.1", "cuda": ""},
        )
        WholeRun(torch, spec, Applier(spec.settings)).arm()
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    told = json.loads((tmp_path / "applied-0.json").read_text())
    assert told["stopped"].startswith("the plan was made with torch 1.13.1, and it is ")
    assert not told["applied"] and not optimizer.param_groups[0]["fused"]
