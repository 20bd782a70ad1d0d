"""`compile` on real modules against the plain computation."""

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

from aiak_tune.ops.draws import Draws
from aiak_tune.optimizations.base import Applied
from aiak_tune.optimizations.catalog import by_name, judge
from aiak_tune.optimizations.compile import compile_in_place, is_compiled
from aiak_tune.optimizations.examples import PLAIN
from aiak_tune.profiles.workload import WorkloadProfile

ENTRY = by_name["compile"]
PARAMS = {"mode": "default"}
SETTINGS: Any = {
    "compile": PARAMS, "amp": {"dtype": "bfloat16"}, "channels-last": {"format": "channels_last"},
}  # fmt: skip
ONE_GRAPH = "1 graph compiled, no graph breaks, no recompiles"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.drop, self.head = nn.Dropout(0.4), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Any:
        out: Tensor = self.head(self.drop(self.body(x).mean((2, 3))))
        return out


class Broken(nn.Module):
    """Breaks its graph once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        x = self.layer(x)
        torch._dynamo.graph_break()
        return self.layer(x * 2)


def net(cls: type[Any] = Net) -> Any:
    torch.manual_seed(0)
    return cls()


def own() -> nn.Module:
    """A class of torch's, of which `Module.compile` compiles nothing."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def quickly(module: nn.Module, backend: Any = "aot_eager") -> Applied:
    """Apply as the entry does, without the seconds of a code generator."""
    got = compile_in_place(module, backend=backend)
    assert got is not None and got.plain is not None
    return got


IMAGES, ROWS = torch.randn(4, 3, 9, 11), torch.randn(3, 4)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    Draws.as_plain = False


def outcome(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Output and gradients of one batch, the same random numbers each time."""
    module.zero_grad()
    torch.manual_seed(1)
    out = module(x)
    out.square().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


def assert_close(found: list[Tensor], wanted: list[Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_values_stay_within_rounding_and_draws_are_its_own_but_when_compared() -> None:
    module = net()
    plain = outcome(module, IMAGES)
    change = ENTRY.apply(module, PARAMS)
    assert change is not None
    Draws.as_plain = True
    assert_close(outcome(module, IMAGES), plain)
    assert change.effect() == ONE_GRAPH
    Draws.as_plain = False
    assert not torch.allclose(outcome(module, IMAGES)[0], plain[0]), "another mask"
    assert change.effect() == "2 graphs compiled, no graph breaks, no recompiles"
    change.undo()
    assert all(torch.equal(a, b) for a, b in zip(outcome(module, IMAGES), plain, strict=True)), (
        "batch norm in training does not read what its statistics became"
    )


@pytest.mark.slow
def test_by_hand_the_same_numbers_come_out() -> None:
    module, other = own(), own()
    other.load_state_dict(module.state_dict())
    change = ENTRY.apply(module, PARAMS)
    wanted = outcome(module, ROWS)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    exec(ENTRY.by_hand(PARAMS), {"model": other})
    got = outcome(other, ROWS)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    assert list(other.state_dict()) == list(module.state_dict())
    pickle.dumps(other)
    assert change is not None
    change.undo()


@pytest.mark.slow
def test_in_a_slice_beside_amp_and_channels_last(tmp_path: Path) -> None:
    def job() -> None:
        model = net()
        optimizer = torch.optim.AdamW(model.parameters())
        for number in range(100):
            loss = model(IMAGES + number % 7).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    plan = replace(QUICK, parity=3, probe=True)
    record = record_of(tmp_path, job, plan, SETTINGS)
    assert record.effects == {
        "channels-last": "1 convolutions channels-last in a compiled forward",
        "amp": "a compiled forward under autocast",
        "compile": "2 graphs compiled, no graph breaks, no recompiles",
    }
    (answer,) = record.probes
    assert answer.problem is None and answer.error is not None and answer.yard is not None
    assert 1e-4 < answer.error <= 2 * answer.yard, "dropout drew the same, bfloat16 did not hide"
    assert record.facts["compiled"] is False, "by itself"


def test_torchs_own_classes_are_compiled_too() -> None:
    for module, x in ((own(), ROWS), (nn.Linear(4, 2), ROWS), (net(), IMAGES)):
        torch.manual_seed(1)
        plain = module(x)
        change = quickly(module)
        torch.manual_seed(1)
        assert torch.equal(module(x), plain) and change.effect() == ONE_GRAPH
        change.undo()


def test_what_is_not_a_call_of_the_module_compiles_nothing() -> None:
    module = own()
    change = quickly(module)
    assert change.effect() is None
    module.forward(ROWS)
    assert change.effect() is None
    change.undo()


def test_plain_computes_without_it() -> None:
    module = own()
    change = quickly(module)
    with change.plain():  # type: ignore[misc]
        module(ROWS)
    assert change.effect() is None
    module(ROWS)
    assert change.effect() == ONE_GRAPH
    change.undo()


def test_class_keys_copies_and_pickles_stay() -> None:
    module = own()
    before, keys = dict(vars(module)), list(module.state_dict())
    change = quickly(module)
    module(ROWS)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    others = (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(buffer, weights_only=False),
    )
    for other in others:
        assert not is_compiled(other) and type(other) is nn.Sequential
        assert torch.equal(other(ROWS), module(ROWS))
    assert list(module.state_dict()) == keys and change.effect() == ONE_GRAPH
    change.undo()
    assert dict(vars(module)) == before


def test_breaks_and_recompiles_are_counted() -> None:
    module = net(Broken)
    change = quickly(module)
    module(ROWS)
    first = str(change.effect())
    assert first.startswith("2 graphs compiled, ") and first.endswith(", no recompiles")
    assert "no graph breaks" not in first, "torch counts one for each frame that it cuts"
    for rows in (5, 6, 7):  # at the second size torch keeps the number of rows open
        module(torch.randn(rows, 4))
    assert str(change.effect()).startswith("4 graphs compiled, ")
    assert "no recompiles" not in str(change.effect())
    change.undo()


def test_what_cannot_be_compiled_runs_as_written() -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no such instruction")

    suppressed = torch._dynamo.config.suppress_errors
    module = own()
    plain = module(ROWS)
    change = quickly(module, backend)
    assert torch.equal(module(ROWS), plain)
    assert change.effect() is None
    change.undo()
    assert torch._dynamo.config.suppress_errors == suppressed


def test_many_roots_of_one_class_do_not_share_torchs_limit() -> None:
    modules = [own() for _ in range(10)]
    changes = [quickly(module) for module in modules]
    for module in modules:
        module(ROWS)
    assert changes[0].effect() == "10 graphs compiled, no graph breaks, no recompiles"
    for change in changes:
        change.undo()


def test_a_model_that_the_job_is_done_with_is_freed() -> None:
    module = own()
    change = quickly(module)
    module(ROWS).sum().backward()
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None
    with change.plain():  # type: ignore[misc]
        pass
    change.undo()


def test_what_draws_nothing_is_not_compiled_twice() -> None:
    module = own()
    change = quickly(module)
    Draws.as_plain = True
    module(ROWS)
    Draws.as_plain = False
    module(ROWS)
    assert change.effect() == ONE_GRAPH
    change.undo()


@pytest.mark.parametrize("where", ["root", "inside", "wrapped", "in place"])
def test_what_is_compiled_already_is_left_alone(where: str) -> None:
    module: Any = own()
    if where == "root":
        module = torch.compile(module, backend="eager")
    elif where == "inside":
        module.append(torch.compile(nn.Linear(2, 2), backend="eager"))
    elif where == "wrapped":
        wrapped: Any = torch.compile(module, backend="eager")
        module = nn.ModuleList([wrapped])
    else:
        module[0].compile(backend="eager")
    assert is_compiled(module) and compile_in_place(module, backend="eager") is None
    assert not is_compiled(own())


def test_wrappers_it_was_not_tried_with_are_left_alone() -> None:
    class FSDPModule(nn.Sequential):
        """Stands for the class that torch's `fully_shard` mixes in."""

    others: list[Any] = [nn.DataParallel(own()), FSDPModule(), torch.jit.script(own())]
    assert [compile_in_place(module) for module in others] == [None] * 3


def test_under_ddp_the_model_inside_is_compiled(tmp_path: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        module = own()
        wrapped = nn.parallel.DistributedDataParallel(module)
        change = quickly(wrapped)
        assert is_compiled(module)
        found = outcome(wrapped, ROWS)
        assert change.effect() == ONE_GRAPH
        with change.plain():  # type: ignore[misc]
            assert_close(outcome(wrapped, ROWS), found)
        change.undo()
        assert not is_compiled(wrapped)
    finally:
        torch.distributed.destroy_process_group()


def with_environment(**changes: Any) -> WorkloadProfile:
    return replace(PLAIN, environment=replace(PLAIN.environment, **changes))


def test_check_names_what_is_missing() -> None:
    model = PLAIN.job.model
    assert model is not None
    assert judge(ENTRY, with_environment(compiler=None, triton=None)).fits, "not known"
    for profile, word in (
        (with_environment(compiler=False), "g++"),
        (with_environment(triton=False), "triton"),
        (with_environment(cuda="12.8", compute_capability=(6, 1)), "7.0"),
        (replace(PLAIN, job=replace(PLAIN.job, compiled=True)), "already"),
        (replace(PLAIN, job=replace(PLAIN.job, model=None)), "no model"),
    ):
        finding = judge(ENTRY, profile)
        assert not finding.fits and word in finding.reason
    cpu = replace(PLAIN.job, model=replace(model, devices=("cpu",)))
    assert judge(ENTRY, replace(with_environment(triton=False), job=cpu)).fits
