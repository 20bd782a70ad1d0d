"""On a real GPU: what changes the model, against the plain computation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aiak_tune.ops.draws import Draws
from aiak_tune.ops.layouts import is_last
from aiak_tune.optimizations.base import Applied
from aiak_tune.optimizations.catalog import by_name

pytestmark = pytest.mark.gpu

PARAMS: Any = {
    "amp": {"dtype": "bfloat16"},
    "channels-last": {"format": "channels_last"},
    "compile": {"mode": "default"},
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 64, 3, groups=8),
        )  # fmt: skip
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        features = self.body(x)
        return self.head(features.mean((2, 3))), features


def net() -> Any:
    torch.manual_seed(0)
    return Net().cuda()


def images(size: int = 16) -> Tensor:
    return torch.randn(size, 3, 20, 22, generator=torch.Generator().manual_seed(1)).cuda()


def applied(module: nn.Module, *names: str) -> list[Applied]:
    found = [by_name[name].apply(module, PARAMS[name]) for name in names]
    assert all(change is not None for change in found)
    return found  # type: ignore[return-value]


def outcome(module: nn.Module, x: Tensor, *, autocast: bool = False) -> list[Tensor]:
    module.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
        outputs = module(x)
    sum(t.double().square().mean() for t in outputs).backward()
    grads = [p.grad.double() for p in module.parameters() if p.grad is not None]
    return [t.detach().double() for t in outputs] + grads


def off(found: list[Tensor], exact: list[Tensor]) -> float:
    pairs = list(zip(found, exact, strict=True))
    apart = sum((a - e).square().sum().item() for a, e in pairs)
    return float((apart / sum(e.square().sum().item() for _, e in pairs)) ** 0.5)


@pytest.fixture(autouse=True)
def _float32_means_it() -> Any:
    """cuDNN takes TF32 for convolutions, and other ones for other layouts."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def test_channels_last_stays_within_rounding() -> None:
    module, x = net(), images()
    exact = outcome(net().double(), x.double())
    plain = off(outcome(module, x), exact)
    (change,) = applied(module, "channels-last")
    assert off(outcome(module, x), exact) <= max(2 * plain, 1e-6)
    assert module(x)[1].is_contiguous()
    assert is_last(module.body[3].weight) and is_last(module.body[3].weight.grad)
    assert "3 convolutions channels-last in 2 forwards" in str(change.effect())
    assert is_last(module.body(x)), "cuDNN keeps to the layout"
    change.undo()
    assert off(outcome(module, x), exact) <= max(2 * plain, 1e-6)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}], ids=str)
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_updates_go_on_when_it_is_applied_beside_a_state(
    name: str, options: dict[str, Any]
) -> None:
    def train(before: int) -> list[Tensor]:
        module, x = net(), images()
        more = {"momentum": 0.9} if name == "SGD" else {}
        optimizer = getattr(torch.optim, name)(module.parameters(), lr=0.01, **options, **more)
        for step in range(6):
            if step == before:
                applied(module, "channels-last")
            for number, p in enumerate(module.parameters()):
                generator = torch.Generator("cuda").manual_seed(100 * step + number)
                p.grad = torch.randn(p.shape, generator=generator, device="cuda")
            optimizer.step()
        module(x)[0].sum().backward()
        return [p.detach().clone() for p in module.parameters()]

    plain = train(-1)
    for before in (0, 3):
        for found, wanted in zip(train(before), plain, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_channels_last_and_amp_stay_within_twice_autocasts_own_error() -> None:
    module, x = net(), images()
    exact = outcome(net().double(), x.double())
    yard = off(outcome(net(), x, autocast=True), exact)
    changes = applied(module, "channels-last", "amp")
    found = outcome(module, x)
    assert all(t.dtype is torch.float32 and t.is_contiguous() for t in module(x))
    assert off(found, exact) <= 2 * yard
    assert all(change.effect() for change in changes)


class Dropping(Net):
    def forward(self, x: Tensor) -> Any:
        scores, features = super().forward(x)
        return nn.functional.dropout(scores, 0.4, self.training), features


def seeded(module: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    return outcome(module, x)


@pytest.fixture
def _drawing_as_plain() -> Any:
    torch._dynamo.reset()
    Draws.as_plain = True
    yield
    Draws.as_plain = False


@pytest.mark.usefixtures("_drawing_as_plain")
@pytest.mark.parametrize("names", [("compile",), ("channels-last", "compile")], ids=str)
def test_compiled_kernels_stay_within_rounding_and_draw_the_same(names: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    module, x = Dropping().cuda(), images()
    plain = seeded(module, x)
    changes = applied(module, *names)
    assert off(seeded(module, x), plain) < 1e-5
    assert str(changes[-1].effect()).startswith("1 graph compiled")
    Draws.as_plain = False
    assert off(seeded(module, x), plain) > 0.01, "masks of its own"
    assert str(changes[-1].effect()).startswith("2 graphs compiled")
    for change in reversed(changes):
        change.undo()
    assert off(seeded(module, x), plain) < 1e-6


@pytest.mark.usefixtures("_drawing_as_plain")
def test_all_three_stay_within_twice_autocasts_own_error() -> None:
    module, x = net(), images()
    exact = outcome(net().double(), x.double())
    yard = off(outcome(net(), x, autocast=True), exact)
    changes = applied(module, "channels-last", "amp", "compile")
    found = outcome(module, x)
    assert all(t.dtype is torch.float32 and t.is_contiguous() for t in module(x))
    assert off(found, exact) <= 2 * yard
    assert [change.effect() for change in changes][:2] == [
        "3 convolutions channels-last in a compiled forward",
        "a compiled forward under autocast",
    ]


def test_a_probe_of_compiled_dropout_passes() -> None:
    from aiak_tune.agent import probe

    torch._dynamo.reset()
    torch.manual_seed(0)
    module, x = Dropping().cuda(), images()
    changes = applied(module, "channels-last", "amp", "compile")
    module(x)
    contexts = [change.plain for change in changes if change.plain is not None]
    answer = probe.model_probe(torch, module, (x,), {}, contexts)
    assert answer.problem is None and answer.error is not None and answer.yard is not None
    assert 0 < answer.error <= 2 * answer.yard < 0.1
