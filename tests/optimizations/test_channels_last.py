"""`channels-last` on real convolutions against the ordinary layout."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import QUICK, record_of
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer

from aiak_tune.agent import probe
from aiak_tune.ops.forwards import LIVE
from aiak_tune.ops.layouts import is_last
from aiak_tune.optimizations.base import Applied
from aiak_tune.optimizations.catalog import by_name, judge
from aiak_tune.optimizations.examples import PLAIN
from aiak_tune.profiles.category import Category

ENTRY = by_name["channels-last"]
PARAMS = {"format": "channels_last"}


class Net(nn.Module):
    """Ordinary, strided, grouped, 1 x 1 and transposed convolutions; a head on flat features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
            nn.Conv2d(12, 12, 3, stride=2, groups=4), nn.Conv2d(12, 8, 1),
            nn.ConvTranspose2d(8, 6, 2, stride=2),
        )  # fmt: skip
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        """Say something."""
        features = self.body(x) * scale
        return self.head(features.mean((2, 3))), features


class Volume(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv3d(2, 4, 3), nn.ReLU(), nn.ConvTranspose3d(4, 2, 3))

    def forward(self, x: Tensor) -> Any:
        return self.body(x), x.mean()


def net(cls: type[Any] = Net) -> Any:
    torch.manual_seed(0)
    return cls()


def applied(module: nn.Module) -> Applied:
    got = ENTRY.apply(module, PARAMS)
    assert got is not None and got.plain is not None
    return got


IMAGES = {Net: torch.randn(4, 3, 9, 11), Volume: torch.randn(2, 2, 6, 7, 5)}


def outcome(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Outputs and gradients of one batch."""
    module.zero_grad()
    outputs = module(x)
    sum(t.double().square().sum() for t in outputs).backward()
    return [t.detach() for t in outputs] + [
        p.grad for p in module.parameters() if p.grad is not None
    ]


def off(found: list[Tensor], exact: list[Tensor]) -> float:
    pairs = list(zip(found, exact, strict=True))
    apart = sum((a.double() - e).square().sum().item() for a, e in pairs)
    return float((apart / sum(e.square().sum().item() for _, e in pairs)) ** 0.5)


@pytest.fixture(autouse=True)
def _hooks_as_before() -> Iterator[None]:
    before = dict(torch_optimizer._global_optimizer_pre_hooks)
    yield
    torch_optimizer._global_optimizer_pre_hooks.clear()
    torch_optimizer._global_optimizer_pre_hooks.update(before)


@pytest.mark.parametrize("cls", [Net, Volume])
def test_outputs_and_gradients_stay_within_rounding_and_undo_is_exact(cls: Any) -> None:
    module, x = net(cls), IMAGES[cls]
    exact = outcome(net(cls).double(), x.double())
    plain = outcome(module, x)
    change = applied(module)
    assert off(outcome(module, x), exact) <= 2 * off(plain, exact) < 1e-5
    assert "convolutions channels-last in 1 forwards" in str(change.effect())
    change.undo()
    after = outcome(module, x)
    assert all(torch.equal(a, b) for a, b in zip(after, plain, strict=True))


@pytest.mark.parametrize("cls", [Net, Volume])
def test_weights_lie_channels_last_and_what_comes_out_does_not(cls: Any) -> None:
    module, x = net(cls), IMAGES[cls]
    change = applied(module)
    weights = [m.weight for m in module.body if "Conv" in type(m).__name__]
    assert all(is_last(w) for w in weights)
    outputs = module(x)
    outputs[0].view(-1), outputs[1].view(-1)
    sum(t.sum() for t in outputs).backward()
    assert all(is_last(w.grad) for w in weights), "backward keeps to the weights' order"
    change.undo()
    assert all(w.is_contiguous() and w.grad.is_contiguous() for w in weights)


def test_plain_computes_as_written_and_counts_nothing() -> None:
    module = net()
    module.eval()
    plain = module(IMAGES[Net])
    change = applied(module)
    with change.plain():  # type: ignore[misc]
        assert all(torch.equal(a, b) for a, b in zip(module(IMAGES[Net]), plain, strict=True))
    assert change.effect() is None and is_last(module.body[0].weight)
    change.undo()


def test_the_probe_passes_it() -> None:
    module = net()
    change = applied(module)
    answer = probe.model_probe(torch, module, (IMAGES[Net],), {}, [change.plain])  # type: ignore[list-item]
    assert answer.problem is None and answer.error is not None and answer.yard is not None
    assert answer.error <= 2 * answer.yard and answer.error < 1e-5
    assert is_last(module.body[0].weight)
    change.undo()


def test_nothing_is_left_in_the_instance() -> None:
    module = net()
    before, forward, live = dict(vars(module)), Net.forward, dict(LIVE)
    keys, own = list(module.state_dict()), list(module.parameters())
    change = applied(module)
    assert dict(vars(module)) == before and list(module.state_dict()) == keys
    assert all(a is b for a, b in zip(module.parameters(), own, strict=True))
    assert Net.forward is not forward and module.forward.__doc__ == "Say something."
    change.undo()
    assert Net.forward is forward and live == LIVE


def test_copies_pickles_and_checkpoints_serve_the_job_as_written() -> None:
    module = net().eval()
    change = applied(module)
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    fresh = net().eval()
    fresh.load_state_dict(torch.load(buffer))
    assert fresh.body[0].weight.is_contiguous()
    x, wanted = IMAGES[Net], net().eval()(IMAGES[Net])
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), fresh, module):
        for got, expected in zip(other(x), wanted, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    change.undo()


def test_the_job_may_load_weights_later() -> None:
    module, other = net(), net()
    nn.init.ones_(other.body[0].weight)
    change = applied(module)
    module.load_state_dict(other.state_dict())
    assert is_last(module.body[0].weight) and bool((module.body[0].weight == 1).all())
    change.undo()


ADAM: Any = torch.optim.Adam
CASES = [
    (ADAM, {"fused": True}), (torch.optim.AdamW, {"fused": True, "amsgrad": True}),
    (torch.optim.SGD, {"fused": True, "momentum": 0.9}), (torch.optim.Adagrad, {"fused": True}),
    (ADAM, {"foreach": True}), (torch.optim.RMSprop, {"momentum": 0.9}),
]  # fmt: skip
GRADIENTS = [torch.randn(4, 6, 3, 3) for _ in range(6)]


def steps(optimizer: Any, weight: Tensor, numbers: range, *, last: bool = True) -> Tensor:
    for number in numbers:
        gradient = GRADIENTS[number].clone()
        weight.grad = gradient.to(memory_format=torch.channels_last) if last else gradient
        optimizer.step()
    return weight


def convolution() -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(6, 4, 3, bias=False)


@pytest.mark.parametrize(("cls", "options"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_updates_are_the_same_whenever_it_is_applied(cls: Any, options: Any) -> None:
    """torch's fused updates mix elements up where the state lies in another order."""
    plain = convolution()
    wanted = steps(cls([plain.weight], **options), plain.weight, range(6), last=False)
    for before in (0, 3):  # at the start, and with state already there
        module = convolution()
        optimizer = cls([module.weight], **options)
        steps(optimizer, module.weight, range(before), last=False)
        change = applied(module)
        got = steps(optimizer, module.weight, range(before, 5))
        states = [v for v in optimizer.state[got].values() if isinstance(v, Tensor) and v.dim()]
        assert states and all(is_last(v) for v in states)
        change.undo()
        steps(optimizer, module.weight, range(5, 6), last=False)
        assert torch.equal(got, wanted) and got.is_contiguous()


def test_a_checkpoint_of_the_optimizer_holds_ordinary_tensors_and_is_read_back() -> None:
    plain = convolution()
    wanted = steps(ADAM([plain.weight], fused=True), plain.weight, range(6), last=False)
    module = convolution()
    optimizer = ADAM([module.weight], fused=True)
    change = applied(module)
    steps(optimizer, module.weight, range(2))
    saved, weights = copy.deepcopy(optimizer.state_dict()), module.weight.detach().clone()
    assert saved["state"][0]["exp_avg"].is_contiguous()
    assert is_last(optimizer.state[module.weight]["exp_avg"]), "the checkpoint's is a copy"
    steps(optimizer, module.weight, range(2, 4))
    optimizer.load_state_dict(copy.deepcopy(saved))  # torch keeps what it is given
    module.weight.data.copy_(weights)
    assert torch.equal(steps(optimizer, module.weight, range(2, 6)), wanted)
    change.undo()
    resumed = convolution()  # as written, from the same checkpoint
    resumed.weight.data.copy_(weights)
    other = ADAM([resumed.weight], fused=True)
    other.load_state_dict(saved)
    assert torch.equal(steps(other, resumed.weight, range(2, 6), last=False), wanted)


def test_a_gradient_that_the_job_made_itself_is_brought_in_order() -> None:
    plain, module = convolution(), convolution()
    wanted = steps(ADAM([plain.weight], fused=True), plain.weight, range(6), last=False)
    change = applied(module)
    got = steps(ADAM([module.weight], fused=True), module.weight, range(6), last=False)
    assert torch.equal(got, wanted)
    change.undo()


def test_what_cannot_be_laid_out_is_left_alone() -> None:
    flat = torch.randn(2 * 216)
    parts, tied = nn.ModuleList([convolution(), convolution()]), nn.ModuleList([convolution()] * 2)
    for number, part in enumerate(parts):
        part.weight.data = flat[216 * number : 216 * (number + 1)].view(4, 6, 3, 3)
    apart = nn.ModuleList([convolution(), convolution()])
    apart[1].weight.data = apart[0].weight.data
    weight_norm = nn.utils.parametrizations.weight_norm(convolution())
    lazy = nn.LazyConv2d(4, 3)
    for module in (parts, apart, weight_norm, lazy, nn.Linear(3, 3), nn.DataParallel(net())):
        assert ENTRY.apply(module, PARAMS) is None
    change = applied(tied)  # one parameter in two places is one
    assert is_last(next(tied.parameters()))
    change.undo()
    assert ENTRY.apply(net().to(memory_format=torch.channels_last), PARAMS) is None


def test_a_view_of_a_weight_fails_aloud_and_never_in_silence() -> None:
    module = net()
    change = applied(module)
    with pytest.raises(RuntimeError, match="view"):
        module.body[0].weight.view(-1)
    change.undo()
    module.body[0].weight.view(-1)


def test_a_model_that_the_job_is_done_with_is_freed() -> None:
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    change = applied(module)
    outcome(module, IMAGES[Net])
    optimizer.step()
    gone = weakref.ref(module.body[0].weight)
    del module, optimizer
    gc.collect()
    assert gone() is None
    change.undo()


def test_safetensors_writes_it(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    module = net()
    plain = {name: value.clone() for name, value in module.state_dict().items()}
    change = applied(module)
    safetensors.save_file(module.state_dict(), tmp_path / "model.safetensors")
    found = safetensors.load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in plain.items())
    change.undo()


@pytest.mark.parametrize("first", ["amp", "channels-last"])
def test_with_amp_in_either_order(first: str) -> None:
    module, x = net(), IMAGES[Net]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        own = net()(x)[0]
    params: Any = {"amp": {"dtype": "bfloat16"}, "channels-last": PARAMS}
    names = [first, *({*params} - {first})]
    changes = [by_name[name].apply(module, params[name]) for name in names]
    outputs = module(x)
    assert all(t.dtype is torch.float32 and t.is_contiguous() for t in outputs)
    torch.testing.assert_close(outputs[0], own.float(), rtol=0.05, atol=0.02)
    assert all(change is not None and change.effect() for change in changes)
    for change in reversed(changes):
        change.undo()  # type: ignore[union-attr]
    assert all(torch.equal(a, b) for a, b in zip(module(x), net()(x), strict=True))


@pytest.mark.slow
def test_beside_torch_compile_no_graph_breaks() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    module, x = net(), IMAGES[Net]
    change = applied(module)
    compiled: Any = torch.compile(module, backend="eager", fullgraph=True)
    for _ in range(4):
        outputs = compiled(x)
    assert outputs[1].is_contiguous()
    assert "in a compiled forward" in str(change.effect())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1, "compiled once"
    change.undo()
    torch._dynamo.reset()


def test_by_hand_the_same_numbers_come_out() -> None:
    module, other, x = net(), net(), IMAGES[Net]
    change = applied(module)
    exec(ENTRY.by_hand(PARAMS), {"model": other})
    pairs = zip(outcome(other, x), outcome(module, x), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    outputs = other(x=x)
    assert all(t.is_contiguous() for t in outputs) and is_last(other.body[0].weight)
    assert list(other.state_dict()) == list(net().state_dict())
    change.undo()


def test_in_a_slice_the_facts_are_the_jobs_own(tmp_path: Path) -> None:
    def job() -> None:
        model = net()
        optimizer = ADAM(model.parameters())
        for _ in range(100):
            model(IMAGES[Net])[0].square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    plan = replace(QUICK, probe=True)
    settings: Any = {"amp": {"dtype": "bfloat16"}, "channels-last": PARAMS}
    record = record_of(tmp_path, job, plan, settings)
    assert record.facts["model"]["convolutions"] == 4
    assert record.facts["model"]["channels_last"] is False
    assert list(record.effects) == ["channels-last", "amp"], "in the catalog's order"
    assert all(record.effects.values()) and record.probes[0].problem is None


def test_check_says_why_not() -> None:
    model = PLAIN.job.model
    assert model is not None
    for changes, word in (
        ({"convolutions": 0}, "no 2-D"),
        ({"convolutions": None}, "not known"),
        ({"channels_last": True}, "already"),
    ):
        job = replace(PLAIN.job, model=replace(model, **changes))
        finding = judge(ENTRY, replace(PLAIN, job=job))
        assert not finding.fits and word in finding.reason
    assert not judge(ENTRY, replace(PLAIN, job=replace(PLAIN.job, dtype="float64"))).fits
    idle = {c: 0.0 for c in Category} | {Category.GAP: 61.0}
    assert not judge(ENTRY, replace(PLAIN, breakdown_ms=idle)).fits
