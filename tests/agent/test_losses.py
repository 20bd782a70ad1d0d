"""Same seed, same losses: with any number of workers, under random augmentation and dropout."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from slices import QUICK, Points, guesting, net, record_of, train
from torch import nn
from torch.utils.data import DataLoader

from aiak_tune.agent.records import SliceRecord
from aiak_tune.agent.seeding import borrowed_randomness, disturb, seed_batches

PLAN = replace(QUICK, parity=10, warmup=10, steps=3, seed=0)


def losses_of(
    tmp_path: Path, plan: Any = PLAN, accumulate: int = 1, samples: int = 24, **more: Any
) -> SliceRecord:
    """24 samples in batches of 4 are six steps an epoch: ten steps are two epochs."""

    def job() -> None:
        model = net(dropout=0.3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        loader = DataLoader(Points(samples, noise=True), batch_size=4, shuffle=True, **more)
        if accumulate == 1:
            train(loader, model, optimizer)
        number = 0
        while True:
            for x, y in loader:
                nn.functional.mse_loss(model(x), y).backward()
                number += 1
                if number % accumulate == 0:
                    optimizer.step()
                    optimizer.zero_grad()

    return record_of(tmp_path, job, plan)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> SliceRecord:
    return losses_of(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize(
    "more",
    [{}, {"num_workers": 1}, {"num_workers": 2}, {"num_workers": 2, "prefetch_factor": 4}],
    ids=str,
)
def test_losses_are_equal_whoever_makes_the_batches(
    tmp_path: Path, plain: SliceRecord, more: dict[str, Any]
) -> None:
    record = losses_of(tmp_path, **more)
    assert len(plain.losses) == 10 and None not in plain.losses
    assert record.losses == plain.losses
    assert record.batch_hashes == plain.batch_hashes and len(plain.batch_hashes) == 10
    assert len(set(plain.losses)) == 10


def test_losses_are_equal_with_persistent_workers(tmp_path: Path, plain: SliceRecord) -> None:
    """As the entry sets them; torch's own draw less would shuffle epoch 2 otherwise."""
    params = {
        "num_workers": 2, "prefetch_factor": 2, "pin_memory": False, "persistent_workers": True,
    }  # fmt: skip

    def job() -> None:
        model = net(dropout=0.3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        loader = DataLoader(Points(24, noise=True), batch_size=4, shuffle=True)
        train(loader, model, optimizer)

    record = record_of(tmp_path, job, PLAN, {"data-workers": params})
    assert record.effects["data-workers"]
    assert record.losses == plain.losses and record.batch_hashes == plain.batch_hashes


def test_with_accumulation_every_batch_of_the_compared_steps_is_seeded(tmp_path: Path) -> None:
    plan = replace(PLAN, parity=4, warmup=4)
    first, second = (
        losses_of(tmp_path, plan, accumulate=3, samples=400, num_workers=n) for n in (0, 2)
    )
    assert len(first.losses) == 12 and first.losses == second.losses


def test_without_parity_random_augmentation_differs(tmp_path: Path) -> None:
    """The comparisons above can fail."""

    def two(workers: int) -> tuple[float, ...]:
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        loader = DataLoader(Points(24, noise=True), batch_size=4, num_workers=workers)
        return tuple(float(x.sum()) for x, _ in loader)

    assert two(0) != two(2)
    with guesting(tmp_path):
        seed_batches(torch, 12, 0)
        assert two(0) == two(2)
    assert two(0) != two(2), "and the guest has left"


def test_losses_are_kept_for_the_compared_steps_alone(tmp_path: Path) -> None:
    """Also where the warm-up lasts longer, until queued batches are used up."""
    plan = replace(PLAN, parity=4, warmup=4)
    record = losses_of(tmp_path, plan, samples=400, num_workers=2, prefetch_factor=6)
    assert record.warmup_steps == 14 and len(record.losses) == 4
    assert 2 <= len(record.late_losses) <= 8


def test_the_warm_up_holds_all_compared_steps(tmp_path: Path) -> None:
    record = losses_of(tmp_path, replace(PLAN, warmup=2))
    assert record.warmup_steps == 10 and len(record.losses) == 10


def test_seeding_a_batch_leaves_the_process_its_own_randomness() -> None:
    def draws() -> tuple[Any, ...]:
        return torch.rand(3).tolist(), random.random(), numpy.random.rand()

    def seed() -> None:
        torch.manual_seed(5)
        random.seed(5)
        numpy.random.seed(5)

    seed()
    expected = draws(), draws()
    seed()
    first = draws()
    with borrowed_randomness(torch, 9):
        inside = draws()
    assert (first, draws()) == expected and inside not in expected
    with borrowed_randomness(torch, 9):
        assert draws() == inside


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("size", [2.0**-23, 2.0**-8])
def test_a_disturbance_moves_every_trainable_weight_by_one_unit(
    dtype: torch.dtype, size: float
) -> None:
    def disturbed(seed: int) -> nn.Module:
        torch.manual_seed(0)
        model = net().to(dtype)
        model[0].bias.requires_grad_(False)
        state = torch.get_rng_state()
        disturb(torch, model, size, seed, set())
        assert torch.equal(torch.get_rng_state(), state)
        return model

    torch.manual_seed(0)
    plain = net().to(dtype)
    moved, again, other = disturbed(3), disturbed(3), disturbed(4)
    eps = torch.finfo(dtype).eps
    unit = max(size, eps)
    both = zip(plain.named_parameters(), moved.parameters(), strict=True)
    for (name, before), after in both:
        change = ((after.double() - before.double()) / before.double()).abs()
        if name == "0.bias":
            assert change.max() == 0
            continue
        # Rounding the product adds at most half a unit of the dtype itself.
        assert change.min() >= unit - 0.51 * eps and change.max() <= unit + 0.51 * eps
        directions = set(((after - before).sign() * before.sign()).flatten().tolist())
        assert directions == {1.0, -1.0} or len(before) < 8
    state = [p.tolist() for p in moved.parameters()]
    assert state == [p.tolist() for p in again.parameters()]
    assert state != [p.tolist() for p in other.parameters()]


def test_weights_that_two_roots_share_move_once() -> None:
    inner = net()
    outer, done = nn.Sequential(inner, nn.Linear(1, 1)), set[int]()
    disturb(torch, inner, 2.0**-8, 0, done)
    before = [p.detach().clone() for p in inner.parameters()]
    disturb(torch, outer, 2.0**-8, 0, done)
    assert all(torch.equal(a, b) for a, b in zip(before, inner.parameters(), strict=True))


def test_a_disturbed_run_starts_near_and_its_weights_count_as_moved_by_training_alone(
    tmp_path: Path, plain: SliceRecord
) -> None:
    record = losses_of(tmp_path, replace(PLAN, disturb=2.0**-23, disturb_seed=1))
    again = losses_of(tmp_path, replace(PLAN, disturb=2.0**-23, disturb_seed=1))
    assert record.losses == again.losses and record.losses != plain.losses
    assert record.losses == pytest.approx(plain.losses, rel=1e-4)

    def still() -> None:
        model = net()
        train(DataLoader(Points(), batch_size=4), model, torch.optim.SGD(model.parameters(), lr=0))

    assert record_of(tmp_path, still, replace(PLAN, disturb=2.0**-8)).moved is False


def test_a_job_that_seeds_itself_is_noticed(tmp_path: Path) -> None:
    def job() -> None:
        torch.manual_seed(3)
        model = net()
        train(DataLoader(Points(), batch_size=4), model, torch.optim.SGD(model.parameters()))

    assert record_of(tmp_path, job, PLAN).facts["seeded"] is True
    assert losses_of(tmp_path).facts["seeded"] is False
    assert torch.manual_seed is torch.random.manual_seed
