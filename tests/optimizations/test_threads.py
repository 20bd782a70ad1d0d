"""`threads` in a real process: the number is in force after the slice, and a job's own wins."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import QUICK, plain_job, record_of
from torch import nn

from aiak_tune.optimizations.base import NoEffectError
from aiak_tune.optimizations.catalog import by_name, judge
from aiak_tune.optimizations.examples import LOADER, ON_CPU, PLAIN
from aiak_tune.optimizations.threads import VARIABLES, chosen_threads, set_threads
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import WorkloadProfile

ENTRY = by_name["threads"]
THREE: Any = {"threads": {"num_threads": 3}}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def on_cpu(threads: int | None, cores: int = 8, ranks: int = 1, **job: Any) -> WorkloadProfile:
    environment = replace(ON_CPU.environment, cores=cores, ranks_per_node=ranks)
    return replace(ON_CPU, environment=environment, job=replace(ON_CPU.job, threads=threads, **job))


def counts(profile: WorkloadProfile) -> tuple[Any, ...]:
    return tuple(ENTRY.check(profile).space["num_threads"])


@pytest.mark.parametrize(
    ("profile", "wanted"),
    [
        (on_cpu(1), (8, 4)),  # as torchrun starts its ranks
        (on_cpu(1, ranks=2), (4, 2)),
        (on_cpu(8, ranks=2), (4, 2, 1)),
        (on_cpu(64, cores=6), (6, 3, 1)),  # a container's share of a large machine
        (on_cpu(8, loader=replace(LOADER, num_workers=3)), (5, 4, 1)),
        (on_cpu(2, cores=2, loader=replace(LOADER, num_workers=9)), (1,)),
        (on_cpu(1, cores=1024), (256,)),
    ],
)
def test_threads_worth_a_trial_have_a_core_each(
    profile: WorkloadProfile, wanted: tuple[int, ...]
) -> None:
    assert counts(profile)[: len(wanted)] == wanted
    assert profile.job.threads not in counts(profile)


@pytest.mark.parametrize(
    ("profile", "why"),
    [
        (on_cpu(8), "one each"),
        (on_cpu(None), "not known"),
        (on_cpu(1, threads_by="torch.set_num_threads"), "by torch.set_num_threads"),
        (on_cpu(1, cores=1, loader=replace(LOADER, num_workers=2)), "one each"),
        (PLAIN, "on the GPU"),
        (replace(PLAIN, job=replace(PLAIN.job, model=None)), "no model"),
    ],
)
def test_it_says_why_a_job_keeps_its_threads(profile: WorkloadProfile, why: str) -> None:
    finding = ENTRY.check(profile)
    assert not finding.fits and why in finding.reason


def test_more_threads_gain_no_more_than_their_number() -> None:
    profile = on_cpu(4, cores=8)
    step = profile.steps.step_ms.mean
    busy = replace(profile, breakdown_ms={Category.COMPUTE: step})
    assert judge(ENTRY, busy).bound == pytest.approx(2.0)
    assert judge(ENTRY, replace(busy, breakdown_ms={Category.DATA_WAIT: step})).bound is None


def test_what_is_computed_stays_within_rounding_and_undo_puts_all_back() -> None:
    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 9))
        loss = model(torch.randn(16, 3, 16, 16)).square().mean()
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    before, plain = torch.get_num_threads(), gradients()
    applied = set_threads(before + 1)
    assert applied is not None and torch.get_num_threads() == before + 1
    for mine, theirs in zip(gradients(), plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert applied.effect() == f"{before + 1} threads in place of {before}"
    applied.undo()
    assert torch.get_num_threads() == before and set_threads(before) is None


def test_the_number_is_in_force_after_the_slice(tmp_path: Path) -> None:
    record = record_of(tmp_path, plain_job, QUICK, THREE)
    assert str(record.effects["threads"]).startswith("3 threads in place of")
    assert record.facts["threads_by"] is None, "what we set is not the job's choice"


def test_data_workers_keep_their_one_thread(tmp_path: Path) -> None:
    class Told(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
        def __len__(self) -> int:
            return 400

        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.full((4,), float(torch.get_num_threads())), torch.zeros(1)

    seen: list[float] = []

    def job() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for x, y in torch.utils.data.DataLoader(Told(), batch_size=4, num_workers=1):
            seen.append(float(x.max()))
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()

    record = record_of(tmp_path, job, QUICK, THREE)
    assert record.effects["threads"] and set(seen) == {1.0}


def test_a_job_that_sets_its_own_is_left_alone_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sets_its_own() -> None:
        torch.set_num_threads(1)
        plain_job()

    record = record_of(tmp_path, sets_its_own, QUICK, THREE)
    assert record.effects == {"threads": None} and torch.get_num_threads() == 1
    assert ["threads", "the job set 1 threads itself, after 3 were set"] in record.warnings
    plain = record_of(tmp_path, sets_its_own)
    assert plain.facts["threads_by"] == "torch.set_num_threads" and plain.facts["threads"] == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    record = record_of(tmp_path, plain_job, QUICK, THREE)
    assert record.effects == {"threads": None} and torch.get_num_threads() == 1
    assert record.facts["threads_by"] == "OMP_NUM_THREADS=2"
    told = "OMP_NUM_THREADS=2 is set for the job, and was left alone"
    assert ["threads", told] in record.warnings
    with pytest.raises(NoEffectError):
        ENTRY.apply(torch, THREE["threads"])


def test_what_pins_memory_is_no_choice_of_the_job(tmp_path: Path) -> None:
    import threading

    def job() -> None:
        thread = threading.Thread(target=torch.set_num_threads, args=(1,))
        thread.start()
        thread.join()
        plain_job()

    assert record_of(tmp_path, job).facts["threads_by"] is None


RANK = """
import os, sys
from aiak_tune.optimizations.threads import chosen_threads
open(f"{sys.argv[1]}/{os.environ['RANK']}", "w").write(
    f"{os.environ['OMP_NUM_THREADS']} {chosen_threads(os.environ)}"
)
"""


@pytest.mark.parametrize("own", [None, "1"])
def test_one_thread_by_torchrun_is_not_the_users_choice(tmp_path: Path, own: str | None) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    if own is not None:
        environment["OMP_NUM_THREADS"] = own
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*launcher, "--nproc-per-node", "2", str(script), str(tmp_path)],
        env=environment, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    told = [(tmp_path / rank).read_text() for rank in "01"]
    assert told == [f"1 {'OMP_NUM_THREADS=1' if own else None}"] * 2


def test_the_users_number_is_seen_without_a_launcher() -> None:
    assert chosen_threads({"OMP_NUM_THREADS": "1"}) == "OMP_NUM_THREADS=1"
    assert chosen_threads({"MKL_NUM_THREADS": "8"}) == "MKL_NUM_THREADS=8"
    assert chosen_threads({}) is None
