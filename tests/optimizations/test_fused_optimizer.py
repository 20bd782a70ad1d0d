"""`fused-optimizer` on real optimizers against the plain update."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from aiak_tune.ops.fused_update import operator_of
from aiak_tune.optimizations.base import Applied
from aiak_tune.optimizations.catalog import by_name, judge
from aiak_tune.optimizations.examples import PLAIN
from aiak_tune.optimizations.fused_optimizer import fuse
from aiak_tune.profiles.workload import OptimizerFacts, WorkloadProfile

ENTRY = by_name["fused-optimizer"]
ADAM, ADAMW, SGD, ADAGRAD = (
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.SGD,
    torch.optim.Adagrad,
)
CASES = [
    (ADAM, {}),
    (ADAM, {"amsgrad": True, "weight_decay": 0.1}),
    (ADAMW, {}),
    (ADAMW, {"maximize": True}),
    (ADAMW, {"lr": torch.tensor(1e-3)}),
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    (ADAGRAD, {"lr_decay": 0.1}),
]
cases = pytest.mark.parametrize(("cls", "options"), CASES, ids=lambda v: getattr(v, "__name__", ""))
X = torch.randn(16, 8)


def job(cls: Any, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(dtype)
    return model, cls(model.parameters(), **options)


def backward(model: nn.Module) -> None:
    model.zero_grad()
    dtype = next(model.parameters()).dtype
    model(X.to(dtype)).square().mean().backward()


def train(model: nn.Module, optimizer: Any, steps: int = 10) -> list[Tensor]:
    for _ in range(steps):
        backward(model)
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def at_first_step(optimizer: Any) -> list[Applied | None]:
    """Apply as the agent does: in the pre hook of the first step."""
    got: list[Applied | None] = []

    def hook(*_: Any) -> None:
        handle.remove()
        got.append(ENTRY.apply(optimizer, {"fused": True}))

    handle = optimizer.register_step_pre_hook(hook)
    return got


def applied(optimizer: Any) -> Applied:
    change = fuse(optimizer)
    assert change is not None
    return change


def close(a: list[Tensor], b: list[Tensor], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


@cases
def test_ten_steps_within_rounding_of_the_plain_update(cls: Any, options: dict[str, Any]) -> None:
    plain = train(*job(cls, **options))
    model, optimizer = job(cls, **options)
    start = [p.detach().clone() for p in model.parameters()]
    got = at_first_step(optimizer)
    fused = train(model, optimizer)
    close(fused, plain)
    assert not torch.allclose(fused[0], start[0], atol=1e-4), "the parameters moved"
    change = got[0]
    assert change is not None
    assert change.effect() == "one fused call updates 4 tensors, 1 parameter groups fused"


@pytest.mark.parametrize("cls", [ADAM, ADAMW, SGD, ADAGRAD])
def test_float64_is_updated_in_float64(cls: Any) -> None:
    plain = train(*job(cls, torch.float64, lr=0.1))
    model, optimizer = job(cls, torch.float64, lr=0.1)
    change = applied(optimizer)
    close(train(model, optimizer), plain, 1e-9, 1e-12)
    assert change.effect()
    change.undo()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cls", [ADAM, ADAMW])
def test_half_precision_is_no_worse_than_the_plain_update(cls: Any, dtype: torch.dtype) -> None:
    """The kernel computes in float32 and rounds once; one step, on the same gradients."""
    # The default eps is zero in float16, and the plain update divides by it.
    eps = {"eps": 1e-4}
    errors = []
    for fused in (False, True):
        model, optimizer = job(cls, dtype, lr=0.1, **eps)
        exact = copy.deepcopy(model).double()
        backward(model)
        for p, q in zip(model.parameters(), exact.parameters(), strict=True):
            q.grad = p.grad.double() if p.grad is not None else None
        if fused:
            applied(optimizer)
        optimizer.step()
        cls(exact.parameters(), lr=0.1, **eps).step()
        pairs = zip(model.parameters(), exact.parameters(), strict=True)
        errors.append(sum((p.double() - q).norm().item() for p, q in pairs))
    assert 0 < errors[1] <= errors[0] * 1.01


@cases
def test_undo_restores_and_the_job_goes_on_as_written(cls: Any, options: dict[str, Any]) -> None:
    plain = train(*job(cls, **options))
    model, optimizer = job(cls, **options)
    backward(model)
    before = snapshot(optimizer)
    change = applied(optimizer)
    assert snapshot(optimizer) != before
    change.undo()
    assert snapshot(optimizer) == before
    operators = [getattr(torch, f"_fused_{n}_") for n in ("adam", "adamw", "sgd", "adagrad")]
    change = applied(optimizer)
    train(model, optimizer, 4)
    change.undo()
    assert operators == [
        getattr(torch, f"_fused_{n}_") for n in ("adam", "adamw", "sgd", "adagrad")
    ]
    assert {k: v for k, v in snapshot(optimizer).items() if k != "state"} == {
        k: v for k, v in before.items() if k != "state"
    }
    close(train(model, optimizer, 6), plain)


def snapshot(optimizer: Any) -> dict[str, Any]:
    """What apply may touch, comparable."""
    attributes = {k: v for k, v in vars(optimizer).items() if k not in ("state", "param_groups")}
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    state = [{k: str(v) for k, v in s.items()} for s in optimizer.state.values()]
    return copy.deepcopy({"attributes": attributes, "groups": groups, "state": state})


@cases
def test_a_state_from_before_goes_on_fused(cls: Any, options: dict[str, Any]) -> None:
    plain = train(*job(cls, **options))
    model, optimizer = job(cls, **options)
    train(model, optimizer, 5)
    change = applied(optimizer)
    close(train(model, optimizer, 5), plain)
    assert change.effect()
    change.undo()


@pytest.mark.parametrize("scaled", [False, True])
@cases
def test_loading_a_checkpoint_afterwards(cls: Any, options: dict[str, Any], scaled: bool) -> None:
    """Flags of the run that wrote it come with it (B29): they must not meet GradScaler."""
    model, optimizer = job(cls, **options)
    train(model, optimizer, 5)
    weights, saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    run = scaled_train if scaled else train
    plain = run(model, optimizer, 5)
    model, optimizer = job(cls, **options)
    backward(model)
    change = applied(optimizer)
    model.load_state_dict(weights)
    optimizer.load_state_dict(saved)
    close(run(model, optimizer, 5), plain)
    assert change.effect()
    written = copy.deepcopy(optimizer.state_dict())
    assert written["param_groups"][0]["fused"] is True, "noted: a checkpoint carries the flag"
    change.undo()
    other, later = job(cls, **options)
    other.load_state_dict(model.state_dict())
    later.load_state_dict(written)
    close(scaled_train(other, later, 2), scaled_train(model, optimizer, 2))


def scaled_train(model: nn.Module, optimizer: Any, steps: int = 10, bad: int = -1) -> list[Tensor]:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for step in range(steps):
        model.zero_grad()
        loss = model(X).square().mean() * (float("inf") if step == bad else 1.0)
        scaler.scale(loss).backward()
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("scaled", [False, True])
@cases
def test_by_hand_the_fused_operator_updates(
    cls: Any, options: dict[str, Any], scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = scaled_train if scaled else train
    plain = run(*job(cls, **options))
    model, optimizer = job(cls, **options)
    exec(ENTRY.by_hand({"fused": True}), {"optimizer": optimizer})
    operator = operator_of(optimizer)
    called = Mock(wraps=getattr(torch, operator))
    monkeypatch.setattr(torch, operator, called)
    close(run(model, optimizer), plain)
    assert called.call_count == 10


@pytest.mark.parametrize("bad", [-1, 0, 3])
@cases
def test_grad_scaler_with_clipping_and_a_skipped_step(
    cls: Any, options: dict[str, Any], bad: int
) -> None:
    plain = scaled_train(*job(cls, **options), bad=bad)
    model, optimizer = job(cls, **options)
    got = at_first_step(optimizer)
    close(scaled_train(model, optimizer, bad=bad), plain)
    assert got[0] is not None and got[0].effect()


@pytest.mark.parametrize("cls", [ADAM, ADAMW, SGD, ADAGRAD])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_group_added_later(cls: Any, scaled: bool) -> None:
    def run(fused: bool, **options: Any) -> list[Tensor]:
        model, optimizer = job(cls, lr=0.1, **options)
        extra = nn.Parameter(torch.ones(3))
        change = None
        if fused:
            backward(model)
            change = applied(optimizer)
        (scaled_train if scaled else train)(model, optimizer, 3)
        optimizer.add_param_group({"params": [extra]})
        extra.grad = torch.full((3,), 0.5)
        (scaled_train if scaled else train)(model, optimizer, 3)
        if change is not None:
            assert change.effect()
            change.undo()
            assert not optimizer.param_groups[1]["fused"] and not optimizer.defaults["fused"]
        return [*(p.detach().clone() for p in model.parameters()), extra.detach().clone()]

    close(run(True), run(False))
    if cls is SGD:
        close(run(True, momentum=0.9), run(False, momentum=0.9))


def test_a_parameter_that_gets_its_gradient_later_does_not_crash_sgd() -> None:
    """torch's fused SGD raises TypeError there; such a group stays as it is."""
    early, late = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = SGD([{"params": [early, late]}], lr=0.1, momentum=0.9)
    early.grad = torch.ones(2)
    assert fuse(optimizer) is None
    optimizer = SGD([{"params": [early]}, {"params": [late]}], lr=0.1, momentum=0.9)
    change = applied(optimizer)
    optimizer.step()
    late.grad = torch.ones(2)
    optimizer.step()
    assert [bool(g["fused"]) for g in optimizer.param_groups] == [True, False]
    assert change.effect() == "one fused call updates 1 tensors, 1 parameter groups fused"
    change.undo()


def test_a_group_with_momentum_added_later_stays_plain() -> None:
    optimizer = SGD([first := nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
    first.grad = torch.ones(2)
    change = applied(optimizer)
    optimizer.step()
    early, late = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [early, late]})
    for p in (early, late):
        p.grad = torch.ones(2)
        optimizer.step()
    # Three updates of `first`, two of `early`, one of `late`: 0.1, 0.19 and 0.271 in turn.
    close(
        [first.detach()[0], early.detach()[0], late.detach()[0]],
        list(torch.tensor([0.439, 0.71, 0.9])),
    )
    assert change.effect()
    change.undo()


@pytest.mark.parametrize("cls", [SGD, ADAGRAD])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_on_the_cpu_that_torch_gets_wrong(cls: Any, dtype: torch.dtype) -> None:
    """pytorch#191763: whole vectors of the parameters do not move."""
    model, optimizer = job(cls, dtype, lr=0.1)
    backward(model)
    assert fuse(optimizer) is None


class MyAdamW(torch.optim.AdamW):
    """Somebody's own update."""


def test_what_is_not_exactly_torchs_is_left_alone() -> None:
    p = nn.Parameter(torch.ones(2))
    for optimizer in (
        MyAdamW([p]),
        torch.optim.RMSprop([p]),
        torch.optim.NAdam([p]),
        ADAMW([p], fused=True),
        ADAMW([p], differentiable=True),
        ADAMW([p], capturable=True),
        ADAM([nn.Parameter(torch.ones(2, dtype=torch.complex64))]),
    ):
        before = snapshot(optimizer)
        assert fuse(optimizer) is None
        assert snapshot(optimizer) == before
    sparse = nn.Embedding(4, 2, sparse=True)
    sparse(torch.tensor([1])).sum().backward()
    assert fuse(SGD(sparse.parameters(), lr=0.1)) is None


def test_no_fused_call_is_no_effect() -> None:
    model, optimizer = job(ADAMW)
    other_model, other = job(ADAMW, fused=True)
    change = applied(optimizer)
    train(other_model, other, 2)
    assert change.effect() is None, "the call was another optimizer's"
    train(model, optimizer, 1)
    assert change.effect()
    optimizer.param_groups[0]["fused"] = False
    assert change.effect() is None
    change.undo()


def with_facts(**facts: Any) -> WorkloadProfile:
    optimizer = PLAIN.job.optimizer_facts
    assert optimizer is not None
    return replace(PLAIN, job=replace(PLAIN.job, optimizer_facts=replace(optimizer, **facts)))


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"cls": "RMSprop"}, "no fused RMSprop"),
        ({"exact_class": False}, "subclass"),
        ({"fused": True}, "already"),
        ({"differentiable": True}, "differentiable"),
        ({"capturable": True}, "capturable"),
        ({"dtypes": ("complex64", "float32")}, "complex64"),
        ({"devices": ("cpu", "cuda:0")}, "several kinds"),
        ({"cls": "SGD", "dtypes": ("bfloat16",), "devices": ("cpu",)}, "half-precision"),
        ({"step_ms": 0.1}, "at most 0.1%"),
    ],
)
def test_check_says_what_stands_against_it(facts: dict[str, Any], word: str) -> None:
    finding = judge(ENTRY, with_facts(**facts))
    assert not finding.fits and word in finding.reason


def test_the_bound_comes_from_the_measured_time_of_the_optimizer() -> None:
    assert judge(ENTRY, with_facts(step_ms=20.0)).bound == pytest.approx(61.0 / 45.0)
    unknown = judge(ENTRY, with_facts(step_ms=None))
    assert unknown.fits and unknown.bound is not None
    assert not judge(ENTRY, replace(PLAIN, job=replace(PLAIN.job, optimizer_facts=None))).fits
    assert OptimizerFacts(cls="Adam").fused is None
