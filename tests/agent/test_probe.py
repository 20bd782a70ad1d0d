"""The comparison in the process: what it passes, what it catches, what it leaves as it was."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import QUICK, Points, net, record_of, train
from torch import Tensor, nn
from torch.utils.data import DataLoader

from aiak_tune.agent import probe
from aiak_tune.optimizations.amp import autocast_forward
from aiak_tune.selector.parity import PROBE_FACTOR, PROBE_FLOOR


@dataclass
class Output:
    logits: Tensor
    hidden: list[Tensor]
    note: str = "none"


class Model(nn.Module):
    """Batch norm, dropout, spectral norm's own buffers, a draw of Python's, inputs written into."""

    calls: Tensor

    def __init__(self, form: str = "tensor") -> None:
        super().__init__()
        self.form = form
        self.first = nn.utils.spectral_norm(nn.Linear(16, 32))
        self.norm = nn.BatchNorm1d(32)
        self.drop = nn.Dropout(0.4)
        self.last = nn.Linear(32, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, *, scale: Tensor | None = None) -> Any:
        self.calls = self.calls + 1
        x.relu_()
        hidden = self.drop(self.norm(self.first(x)))
        if random.random() < 0.5:
            hidden = hidden * 2
        logits = self.last(hidden) * (1 if scale is None else scale)
        if self.form == "dict":
            return {"logits": logits, "aux": {"n": 3, "hidden": hidden}}
        return Output(logits, [hidden]) if self.form == "dataclass" else logits


def check(answer: Any) -> bool:
    assert answer.problem is None, answer.problem
    return bool(answer.error <= max(PROBE_FACTOR * answer.yard, PROBE_FLOOR))


@pytest.mark.parametrize("form", ["tensor", "dict", "dataclass"])
def test_amp_passes_and_everything_stays_as_it_was(form: str) -> None:
    torch.manual_seed(0)
    model, x, scale = Model(form), torch.randn(24, 16), torch.tensor(1.5)
    model(x.clone(), scale=scale)
    model.last.weight.grad = torch.ones(4, 32)
    applied = autocast_forward(model, "bfloat16")
    assert applied is not None and applied.plain is not None
    before = copy.deepcopy(model.state_dict()), x.clone()
    states = torch.get_rng_state(), random.getstate()
    answer = probe.model_probe(torch, model, (x,), {"scale": scale}, [applied.plain])
    assert check(answer) and (answer.error or 0) > 1e-4, "bfloat16 was seen at work"
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before[0].items())
    assert torch.equal(x, before[1])
    grads = {name for name, p in model.named_parameters() if p.grad is not None}
    assert grads == {"last.weight"} and torch.equal(model.last.weight.grad, torch.ones(4, 32))
    applied.undo()


@contextmanager
def plain_of(model: Any) -> Iterator[None]:
    model.factor, kept = 1.0, model.factor
    try:
        yield
    finally:
        model.factor = kept


class Scaled(nn.Module):
    """Computes `factor` times what it should, or something else that is wrong."""

    def __init__(self, factor: float, fault: str = "") -> None:
        super().__init__()
        self.layers, self.factor, self.fault = net(), factor, fault

    def forward(self, x: Tensor) -> Any:
        wrong = self.factor != 1
        if wrong and self.fault:
            faults = {
                "detach": lambda: self.layers(x).detach(),
                "raise": lambda: dict[str, Any]()["missing"],
                "assert": lambda: (_ for _ in ()).throw(AssertionError("never")),
                "nan": lambda: self.layers(x) * float("nan"),
                "fewer": lambda: self.layers(x)[:1],
            }
            return faults[self.fault]()
        return self.layers(x) * self.factor


def probed(model: Scaled) -> Any:
    context = lambda: plain_of(model)  # noqa: E731
    return probe.model_probe(torch, model, (torch.randn(32, 4),), {}, [context])


def test_a_forward_that_is_one_percent_off_is_caught() -> None:
    torch.manual_seed(1)
    assert check(probed(Scaled(1.0)))
    assert probed(Scaled(1.0)).error == 0
    assert not check(probed(Scaled(1.01)))


@pytest.mark.parametrize("fault", ["detach", "raise", "assert", "fewer"])
def test_what_cannot_be_compared_is_a_problem_and_no_error_in_the_job(fault: str) -> None:
    answer = probed(Scaled(2.0, fault))
    assert answer.error is None and answer.problem


def test_values_that_are_not_finite_never_pass() -> None:
    answer = probed(Scaled(2.0, "nan"))
    assert answer.error is None or not answer.error <= 1e9


def test_a_computation_that_gives_zeros_only_shows_nothing() -> None:
    model = nn.Linear(4, 1)
    for p in model.parameters():
        nn.init.zeros_(p)
    answer = probe.model_probe(torch, model, (torch.zeros(3, 4),), {}, [nullcontext])
    assert answer.error is None and "zeros" in str(answer.problem)


def test_the_graph_that_an_input_comes_from_is_left_to_the_job() -> None:
    maker, judge = nn.Linear(4, 4), Scaled(1.0)
    fake = maker(torch.randn(8, 4))
    answer = probe.model_probe(torch, judge, (fake,), {}, [nullcontext])
    assert answer.problem is None
    judge(fake).mean().backward()
    assert maker.weight.grad is not None


OPTIMIZERS = [
    (torch.optim.AdamW, {"weight_decay": 0.1}),
    (torch.optim.AdamW, {"amsgrad": True, "maximize": True}),
    (torch.optim.Adam, {"weight_decay": 0.01}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (torch.optim.SGD, {}),
]


def stepped(kind: Any, options: dict[str, Any], fused: bool = True) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(net(), nn.Linear(1, 3))
    model.scale = nn.Parameter(torch.tensor(1.5))
    groups = [{"params": model[0].parameters()}, {"params": [*model[1].parameters(), model.scale]}]
    optimizer = kind(groups, lr=1e-2, fused=fused, **options)
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.randn(16, 4)) * model.scale).square().mean().backward()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS)
def test_fused_optimizers_pass_and_are_left_as_they_were(kind: Any, options: Any) -> None:
    optimizer = stepped(kind, options)
    before = copy.deepcopy(optimizer.state_dict())
    weights = [p.detach().clone() for g in optimizer.param_groups for p in g["params"]]
    answer = probe.optimizer_probe(torch, optimizer)
    assert answer is not None and check(answer) and (answer.error or 0) < 1e-4
    after = optimizer.state_dict()
    assert str(before) == str(after)
    now = [p for g in optimizer.param_groups for p in g["params"]]
    assert all(torch.equal(a, b) for a, b in zip(weights, now, strict=True))


@pytest.mark.parametrize("fault", ["lr", "weight_decay", "raise"])
def test_a_wrong_fused_update_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = stepped(torch.optim.AdamW, {"weight_decay": 0.1})
    plain = torch._fused_adamw_

    def wrong(*args: Any, **kwargs: Any) -> Any:
        if fault == "raise":
            raise NotImplementedError("no such kernel")
        kwargs[fault] *= 1.01 if fault == "lr" else 0
        return plain(*args, **kwargs)

    monkeypatch.setattr(torch, "_fused_adamw_", wrong)
    answer = probe.optimizer_probe(torch, optimizer)
    assert answer is not None
    if fault == "raise":
        assert answer.error is None and "no such kernel" in str(answer.problem)
    else:
        assert not check(answer)


def test_what_is_not_fused_or_has_no_gradient_is_not_compared() -> None:
    assert probe.optimizer_probe(torch, stepped(torch.optim.AdamW, {}, fused=False)) is None
    fresh = torch.optim.AdamW(net().parameters(), fused=True)
    answer = probe.optimizer_probe(torch, fresh)
    assert answer is not None and answer.problem == "no gradients seen"
    # The second group alone is fused.
    optimizer = stepped(torch.optim.AdamW, {})
    optimizer.param_groups[0]["fused"] = False
    answer = probe.optimizer_probe(torch, optimizer)
    assert answer is not None and check(answer)


BOTH: Any = {"amp": {"dtype": "bfloat16"}, "fused-optimizer": {}}


def test_in_a_slice_each_root_and_each_optimizer_is_compared(tmp_path: Path) -> None:
    def job() -> None:
        maker, judge = nn.Linear(2, 4), net()
        ours = [torch.optim.AdamW(m.parameters()) for m in (judge, maker)]
        for x, _ in DataLoader(Points(), batch_size=8):
            fake = maker(torch.randn(8, 2))
            (judge(fake.detach()).mean() - judge(x).mean()).backward()
            ours[0].step()
            judge(fake).mean().backward()
            ours[1].step()
            [optimizer.zero_grad() for optimizer in ours]

    record = record_of(tmp_path, job, replace(QUICK, probe=True), BOTH)
    assert all(record.effects.values()), record.effects
    assert [p.what for p in record.probes].count("model") == 2
    assert [p.what for p in record.probes].count("optimizer") == 2
    assert all(check(p) for p in record.probes)


def test_a_model_trained_in_eval_mode_is_compared_too(tmp_path: Path) -> None:
    def job() -> None:
        model = net().eval()
        train(DataLoader(Points(), batch_size=8), model, torch.optim.AdamW(model.parameters()))

    record = record_of(tmp_path, job, replace(QUICK, probe=True), BOTH)
    assert sorted(p.what for p in record.probes) == ["model", "optimizer"]
