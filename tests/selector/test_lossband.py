import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from aiak_tune.optimizations.base import Numerics
from aiak_tune.selector.lossband import ULP, LossBand, Losses, band, check

BATCH = 16


def train(
    *, steps: int, ulp: float = 0.0, seed: int = 0, fault: str | None = None, way: str = "plain"
) -> Losses:
    """A small MLP trained with SGD; `fault` plants an error, `way` computes the same otherwise."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
    model.append(nn.Linear(48, 6))
    signs = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            flips = torch.randint(0, 2, parameter.shape, generator=signs)
            parameter.mul_(1 + ulp * (2.0 * flips - 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(1)
    teacher = torch.randn(24, 6, generator=data)
    values, taken, before = [], 0, None
    for step in range(steps):
        x = torch.randn(BATCH, 24, generator=data)
        batch = x, (x @ teacher).argmax(1)
        used = before if fault == "stale batch" and step % 20 == 5 and before else batch
        before = batch
        optimizer.zero_grad()
        values.append(backward(model, *used, way))
        if fault == "accumulated twice":
            backward(model, *used, way)
        for parameter in model.parameters():
            assert parameter.grad is not None
            if fault == "gradients off by 1%":
                parameter.grad *= 1.01
        if fault == "skipped steps" and step % 8 == 4:
            continue
        optimizer.step()
        taken += 1
    # A job that skips work and still claims it: only the losses can tell.
    claimed = steps if fault else taken
    return Losses(values=tuple(values), steps=claimed, samples=steps * BATCH)


def backward(model: nn.Module, x: torch.Tensor, y: torch.Tensor, way: str) -> float:
    if way == "chunks":
        parts = [cross_entropy(model(a), b) / 4 for a, b in zip(x.chunk(4), y.chunk(4))]  # noqa: B905
        for part in parts:
            part.backward()
        return float(sum(part.item() for part in parts))
    if way == "other order":
        x, y = x.flip(0), y.flip(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "bfloat16"):
        loss = cross_entropy(model(x).float(), y)
    loss.backward()
    return loss.item()


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Kernels this small are slower on two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def band_of(steps: int, numerics: Numerics) -> LossBand:
    runs = [train(steps=steps, ulp=ULP[numerics], seed=seed) for seed in (1, 2, 3)]
    return band(train(steps=steps), runs, ulp=ULP[numerics])


DATA = Path(__file__).parents[1] / "data" / "parity"
FAULTS = ["gradients off by 1%", "skipped steps", "stale batch", "accumulated twice"]


@pytest.mark.parametrize("steps", [12, 30])
@pytest.mark.parametrize("numerics", [Numerics.LOSSLESS, Numerics.CHANGING])
def test_planted_faults_are_caught_and_the_unmodified_job_passes(
    steps: int, numerics: Numerics
) -> None:
    limit = band_of(steps, numerics)
    for seed in range(11, 17):
        assert check(limit, train(steps=steps, ulp=ULP[numerics], seed=seed)).passed
    missed = [f for f in FAULTS if check(limit, train(steps=steps, fault=f)).passed]
    # 1% of the gradients over 12 steps is less than bfloat16's own rounding of the loss.
    unseen = ["gradients off by 1%"] if numerics is Numerics.CHANGING and steps == 12 else []
    assert missed == unseen


@pytest.mark.parametrize("way", ["chunks", "other order"])
def test_sums_in_another_order_are_lossless(way: str) -> None:
    verdict = check(band_of(30, Numerics.LOSSLESS), train(steps=30, way=way))
    assert verdict.passed, verdict.reason


def test_bfloat16_is_changing_and_not_lossless() -> None:
    candidate = train(steps=30, way="bfloat16")
    assert check(band_of(30, Numerics.CHANGING), candidate).passed
    assert not check(band_of(30, Numerics.LOSSLESS), candidate).passed


def test_bfloat16_on_a_real_gpu_passes_and_a_skipped_step_does_not() -> None:
    recorded = json.loads((DATA / "gpt2_h200.json").read_text())

    def losses(values: list[float]) -> Losses:
        return Losses(values=tuple(values), steps=12, samples=96)

    reference = losses(recorded["reference"])
    runs = [losses(values) for values in recorded["disturbed"]]
    limit = band(reference, runs, ulp=ULP[Numerics.CHANGING])
    for values in recorded["bf16"]:
        assert check(limit, losses(values)).passed
        skipped = values[:6] + values[5:-1]  # the seventh update did not happen
        assert not check(limit, losses(skipped)).passed
    lossless = band(reference, runs)
    assert not check(lossless, losses(recorded["bf16"][0])).passed


def falling(steps: int = 12, by: float = 0.0) -> Losses:
    values = tuple(2.0 - 0.05 * i + by for i in range(steps))
    return Losses(values=values, steps=steps, samples=steps * 4)


def test_a_job_deterministic_to_the_bit_still_accepts_rounding() -> None:
    limit = band(falling(), [falling()] * 3)
    assert check(limit, falling(by=1e-7)).passed
    verdict = check(limit, falling(by=1e-3))
    assert (verdict.passed, verdict.reason_code) == (False, "parity")
    assert verdict.reason is not None and "baseline's" in verdict.reason


def test_the_band_is_three_times_the_largest_deviation_in_the_mean() -> None:
    limit = band(falling(), [falling(by=0.001), falling(by=0.002)])
    verdict = check(limit, falling(by=0.005))
    assert verdict.passed
    assert verdict.band == pytest.approx(0.006)
    assert verdict.delta == pytest.approx(0.005)
    assert verdict.metric == "mean |loss - baseline| over steps 1-12"
    assert (verdict.steps, verdict.baseline_runs) == (12, 2)
    assert verdict.record(seeds=2).seeds == 2
    assert not check(limit, falling(by=0.0061)).passed


def test_one_step_far_off_closes_the_gate_though_the_mean_is_inside() -> None:
    values = list(falling().values)
    values[2] = 2.0
    limit = band(falling(), [falling(by=0.01)])
    verdict = check(limit, replace(falling(), values=tuple(values)))
    assert verdict.delta is not None and verdict.band is not None
    assert verdict.delta < verdict.band and not verdict.passed
    assert verdict.reason is not None and "at step 3" in verdict.reason


def test_a_chaotic_end_does_not_widen_the_calm_start() -> None:
    plain = [2.0 - 0.05 * i for i in range(12)]
    late = tuple(v + (0.5 if i > 8 else 0) for i, v in enumerate(plain))
    limit = band(falling(), [replace(falling(), values=late)])
    early = tuple(v + (0.001 if i < 3 else 0) for i, v in enumerate(plain))
    assert not check(limit, replace(falling(), values=early)).passed


SHORT, NONE = falling(7), Losses(values=(None,) * 12, steps=12, samples=48)
CONSTANT = Losses(values=(2.0,) * 12, steps=12, samples=48)


@pytest.mark.parametrize(
    ("reference", "disturbed", "candidate", "code", "words"),
    [
        (falling(), [falling()], NONE, "parity", "no loss was seen"),
        (NONE, [falling()], falling(), "parity", "no loss was seen in the baseline"),
        (SHORT, [SHORT], SHORT, "parity", "only 7 steps"),
        (falling(), [falling()], replace(falling(7), steps=12, samples=48), "parity", "only 7"),
        (falling(), [], falling(), "parity", "no disturbed run"),
        (CONSTANT, [CONSTANT], CONSTANT, "parity", "did not move"),
        (falling(), [falling()], replace(falling(), steps=11), "skipped_work", "11 optimizer"),
        (falling(), [falling()], replace(falling(), samples=40), "skipped_work", "40 samples"),
        (falling(), [falling()], replace(falling(), samples=None), "skipped_work", "None"),
        (falling(), [falling(by=math.nan)], falling(), "parity", "baseline's own loss"),
        (falling(), [falling()], falling(by=math.inf), "non_finite_loss", "inf at step 1"),
        (falling(), [falling()], falling(by=math.nan), "non_finite_loss", "nan at step 1"),
    ],
)
def test_without_evidence_the_gate_is_closed(
    reference: Losses, disturbed: list[Losses], candidate: Losses, code: str, words: str
) -> None:
    verdict = check(band(reference, disturbed), candidate)
    assert not verdict.passed
    assert verdict.reason_code == code
    assert verdict.reason is not None and words in verdict.reason
    assert verdict.delta is None or math.isfinite(verdict.delta)
