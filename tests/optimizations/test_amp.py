"""`amp` on real modules against float32 and against torch's own autocast."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aiak_tune.ops.forwards import LIVE
from aiak_tune.ops.outputs import to_float32
from aiak_tune.optimizations.base import Applied
from aiak_tune.optimizations.catalog import by_name, judge
from aiak_tune.optimizations.examples import PLAIN
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import Environment

ENTRY = by_name["amp"]
PARAMS = {"dtype": "bfloat16"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128))
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Say something."""
        out: Tensor = self.head(self.body(x)) * scale
        return out


class Child(Net):
    """Inherits its forward."""


def net(cls: type[Any] = Net) -> Any:
    torch.manual_seed(0)
    return cls()


def applied(module: nn.Module) -> Applied:
    got = ENTRY.apply(module, PARAMS)
    assert got is not None
    return got


X, Y = torch.randn(32, 64), torch.randint(0, 10, (32,))


def outcome(module: nn.Module, forward: Callable[..., Any]) -> tuple[Tensor, list[Tensor]]:
    """Outputs and gradients of one batch."""
    module.zero_grad()
    out = forward(X)
    nn.functional.cross_entropy(out.float(), Y).backward()
    return out.detach().float(), [p.grad.clone() for p in module.parameters() if p.grad is not None]


def distance(a: tuple[Tensor, list[Tensor]], b: tuple[Tensor, list[Tensor]]) -> tuple[float, float]:
    grads = zip(a[1], b[1], strict=True)
    return (a[0] - b[0]).norm().item(), sum((x - y).norm().item() for x, y in grads)


def test_no_further_from_float32_than_twice_autocast_itself() -> None:
    module = net()
    plain = outcome(module, module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = module(X)
    own = distance(outcome(module, lambda _: inside), plain)
    change = applied(module)
    got = distance(outcome(module, module), plain)
    assert 0 < got[0] <= 2 * own[0] and 0 < got[1] <= 2 * own[1]
    assert change.effect() == "1 forwards under autocast"
    change.undo()
    after = outcome(module, module)
    assert torch.equal(after[0], plain[0]) and distance(after, plain) == (0.0, 0.0)


def test_gradients_and_outputs_are_float32_in_training_and_evaluation() -> None:
    module = net()
    change = applied(module)
    out, grads = outcome(module, module)
    assert module(X).dtype is torch.float32 and {g.dtype for g in grads} == {torch.float32}
    module.eval()
    with torch.no_grad():
        evaluated = module(X)
    with change.plain():  # type: ignore[misc]
        assert not torch.equal(module(X), evaluated)
    assert torch.equal(evaluated, out), "what is trained is what is evaluated"
    change.undo()


def test_plain_computes_as_written_and_counts_nothing() -> None:
    module = net()
    plain = module(X)
    change = applied(module)
    assert change.plain is not None
    with change.plain():
        assert torch.equal(module(X), plain)
    assert change.effect() is None
    assert not torch.equal(module(X), plain)
    change.undo()


def test_the_jobs_own_autocast_wins() -> None:
    module = net()
    change = applied(module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module(X).dtype is torch.bfloat16, "as the job wrote it"
    assert change.effect() is None
    change.undo()


@pytest.mark.parametrize("cls", [Net, Child])
def test_nothing_is_left_in_the_instance_and_undo_is_exact(cls: type[nn.Module]) -> None:
    module = net(cls)
    before, forward, own = dict(vars(module)), cls.forward, "forward" in vars(cls)
    live = dict(LIVE)
    keys = list(module.state_dict())
    change = applied(module)
    assert dict(vars(module)) == before and list(module.state_dict()) == keys
    assert type(module) is cls and isinstance(module, cls)
    assert inspect.signature(module.forward) == inspect.signature(Net().forward)
    assert module.forward.__doc__ == "Say something."
    change.undo()
    assert cls.forward is forward and ("forward" in vars(cls)) is own and live == LIVE


def test_copies_and_pickles_compute_as_written() -> None:
    module = net()
    plain = module(X)
    change = applied(module)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    for other in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(buffer, weights_only=False),
        torch.optim.swa_utils.AveragedModel(module),
        net(),
    ):
        assert torch.equal(other(X), plain)
    assert not torch.equal(module(X), plain)
    change.undo()


def test_two_roots_of_one_class_and_a_dead_one() -> None:
    first, second, live = net(), net(), dict(LIVE)
    plain = first(X)
    a, b = applied(first), applied(second)
    first(X), second(X), second(X)
    assert (a.effect(), b.effect()) == (
        "1 forwards under autocast",
        "2 forwards under autocast",
    )
    a.undo()
    assert torch.equal(first(X), plain) and not torch.equal(second(X), plain)
    del second
    assert live == LIVE
    b.undo()
    a.undo()


def test_a_forward_in_the_instance_is_wrapped_there() -> None:
    module = net()
    plain = module(X)
    own = module.forward
    module.forward = lambda x: own(x)
    patched = module.forward
    change = applied(module)
    assert not torch.equal(module(X), plain) and change.effect()
    change.undo()
    assert module.forward is patched and torch.equal(module(X), plain)


@pytest.mark.slow
@pytest.mark.parametrize("inner", [True, False])
def test_beside_torch_compile_no_graph_breaks(inner: bool) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    module = net()
    plain = module(X)
    if inner:  # compile comes after: the wrapper is traced
        change = applied(module)
        compiled: Any = torch.compile(module, backend="eager", fullgraph=True)
    else:
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        change = applied(compiled)
    out = compiled(X)
    assert out.dtype is torch.float32 and not torch.equal(out, plain)
    out.sum().backward()
    for _ in range(5):
        compiled(X)
    assert change.effect() in ("a compiled forward under autocast", "6 forwards under autocast")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1, "compiled once"
    change.undo()
    torch._dynamo.reset()


def test_what_has_nothing_in_float32_is_left_alone() -> None:
    assert ENTRY.apply(net().double(), PARAMS) is None
    assert ENTRY.apply(nn.Identity(), PARAMS) is None
    assert ENTRY.apply(nn.DataParallel(net()), PARAMS) is None


Pair = namedtuple("Pair", "a b")


@dataclass(frozen=True)
class Output:
    logits: Tensor
    loss: float
    hidden: tuple[Tensor, ...] = ()


@dataclass(slots=True)
class Slotted:
    logits: Tensor


class ModelOutput(OrderedDict[str, Any]):
    """As transformers has it: a mapping whose items are attributes too."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


HALF, FULL = torch.ones(2, dtype=torch.bfloat16), torch.ones(2)


@pytest.mark.parametrize(
    "value",
    [
        HALF,
        (HALF, FULL, "text"),
        [HALF, [HALF]],
        Pair(HALF, None),
        {"a": HALF, "b": {"c": (HALF,)}},
        OrderedDict(a=HALF),
        UserDict(a=HALF),
        ModelOutput(logits=HALF),
        Output(HALF, 1.0, (HALF,)),
        Slotted(HALF),
        torch.max(HALF.reshape(1, 2), dim=1),
        nn.utils.rnn.pack_sequence([HALF]),
    ],
    ids=lambda v: type(v).__name__,
)
def test_outputs_keep_their_structure_and_type(value: Any) -> None:
    got = to_float32(value, {})
    assert type(got) is type(value)
    assert dtypes(got) == [torch.float32 if d is torch.bfloat16 else d for d in dtypes(value)]
    assert torch.bfloat16 in dtypes(value), "the value that came in is not changed"
    if isinstance(got, ModelOutput):
        assert got.logits is got["logits"]  # type: ignore[attr-defined]


def dtypes(value: Any) -> list[torch.dtype]:
    if isinstance(value, Tensor):
        return [value.dtype]
    if isinstance(value, (dict, UserDict)):
        return [d for v in value.values() for d in dtypes(v)]
    if isinstance(value, (tuple, list)):
        return [d for v in value for d in dtypes(v)]
    if isinstance(value, (Output, Slotted)):
        return [d for n in value.__dataclass_fields__ for d in dtypes(getattr(value, n))]
    return []


def test_what_holds_no_half_precision_comes_back_itself() -> None:
    long = torch.ones(2, dtype=torch.long)
    for value in (FULL, (FULL, long), {"a": [FULL]}, Output(FULL, 0.0), "text", None, 3):
        assert to_float32(value, {}) is value


def test_one_tensor_in_two_places_stays_one() -> None:
    a, b = to_float32((HALF, [HALF]), {})
    assert a is b[0]


def test_by_hand_the_same_numbers_come_out() -> None:
    module, other = net(), net()
    change = applied(module)
    exec(ENTRY.by_hand(PARAMS), {"model": other})
    got, wanted = outcome(other, other), outcome(module, module)
    assert torch.equal(got[0], wanted[0]) and distance(got, wanted) == (0.0, 0.0)
    assert other(X).dtype is torch.float32 and not torch.equal(other(X), net()(X))
    assert list(other.state_dict()) == list(net().state_dict())
    change.undo()


def test_by_hand_outputs_of_several_tensors_are_cast_back() -> None:
    class Two(Net):
        def forward(self, x: Tensor, scale: float = 1.0) -> Any:
            hidden = self.body[0](x)
            return {"hidden": hidden, "rest": (self.head(self.body(x)), torch.arange(3))}

    module = net(Two)
    exec(ENTRY.by_hand(PARAMS), {"model": module})
    assert dtypes(module(X)) == [torch.float32, torch.float32, torch.int64]


def test_check_knows_the_hardware_and_the_job() -> None:
    job, model = PLAIN.job, PLAIN.job.model
    assert model is not None
    cpu = replace(job, model=replace(model, devices=("cpu",)))
    for fast, fits in ((True, True), (None, True), (False, False)):
        profile = replace(PLAIN, job=cpu, environment=Environment(cores=2, bf16_fast=fast))
        assert judge(ENTRY, profile).fits is fits
    for other in (
        replace(job, dtype="bfloat16"),
        replace(job, dtype=None),
        replace(job, amp=True),
        replace(job, grad_scaler=True),
    ):
        assert not judge(ENTRY, replace(PLAIN, job=other)).fits
    idle = {c: 0.0 for c in Category} | {Category.GAP: 61.0}
    assert not judge(ENTRY, replace(PLAIN, breakdown_ms=idle)).fits


def test_the_bound_leaves_what_is_no_matmul_half_its_time() -> None:
    everything = {c: 0.0 for c in Category} | {Category.COMPUTE: 61.0}
    for share, bound in ((1.0, 16.0), (0.0, 2.0), (None, 16.0)):
        profile = replace(PLAIN, breakdown_ms=everything, matmul_share=share)
        assert judge(ENTRY, profile).bound == pytest.approx(bound)
