"""The in-process comparison: a changed computation beside the plain one, on the job's own batch.

Same module, same batch, same buffers, same random state, once each: as changed, as written, and
as written in the numerics class's precision (the yardstick). What the computation moved is put
back.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from aiak_tune.agent.facts import local, tensors_in
from aiak_tune.agent.records import ProbeRecord
from aiak_tune.agent.seeding import kept_randomness
from aiak_tune.agent.settings import FAULTS
from aiak_tune.ops.draws import Draws

Context = Callable[[], AbstractContextManager[object]]
PROBED_VALUES = 4_000_000
TINY = 1e-6  # relative errors below are float32's own rounding, whoever makes them


def model_probe(
    torch: Any, module: Any, args: Any, kwargs: Any, plain: Sequence[Context]
) -> ProbeRecord:
    """Compare outputs and gradients of the changed module with the plain ones.

    The error is the worse of the outputs' and the gradients' distance from the plain float32
    computation, relative to its norm; the yardstick is the same for plain bfloat16 autocast.
    """
    try:
        with torch.enable_grad(), _drawing_as_plain():
            changed = _compute(torch, module, args, kwargs)
            with ExitStack() as stack:
                # A compiled call runs the module's own hooks too: then the plain one must.
                whole = _compiled(module) is not None
                for context in plain:
                    stack.enter_context(context())
                reference = _compute(torch, module, args, kwargs, whole=whole)
                device = next(module.parameters()).device.type
                with torch.autocast(device, dtype=torch.bfloat16):
                    yard = _compute(torch, module, args, kwargs, whole=whole)
        pairs = [
            (_distance(a, r), _distance(y, r))
            for a, y, r in zip(changed, yard, reference, strict=True)
        ]
    except FAULTS as error:
        return ProbeRecord(what="model", error=None, yard=None, problem=_reason(error))
    off, yardstick = max(pairs, key=_badness)
    return ProbeRecord(what="model", error=off, yard=yardstick)


def _badness(pair: tuple[float, float]) -> float:
    """How far an error is above its yardstick; a NaN is as bad as can be."""
    ratio = pair[0] / max(pair[1], TINY)
    return ratio if ratio == ratio else float("inf")


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _compiled(module: Any) -> Any:
    """Return what `Module.__call__` calls in place of the module's own code; None for nothing."""
    return getattr(module, "_compiled_call_impl", None)


@contextmanager
def _drawing_as_plain() -> Iterator[None]:
    before, Draws.as_plain = Draws.as_plain, True
    try:
        yield
    finally:
        Draws.as_plain = before


def _compute(
    torch: Any, module: Any, args: Any, kwargs: Any, *, whole: bool = False
) -> tuple[list[Any], list[Any]]:
    """Return the float outputs and the gradients of a fixed random product of them.

    `whole`: with the module's own hooks.
    """
    call = _compiled(module) or (module._call_impl if whole else module.forward)
    with _kept_buffers(torch, module), _kept_randomness(torch):
        outputs = call(*_twins(torch, args), **_twins(torch, kwargs))
        floats = [
            t.float() if t.dtype in (torch.bfloat16, torch.float16) else t
            for t in tensors_in(outputs)
            if t.is_floating_point() and t.requires_grad
        ]
        if not floats:
            raise ValueError("the root module gives no output that gradients flow from")
        seeds = []
        for number, tensor in enumerate(floats):
            generator = torch.Generator(device=tensor.device)
            generator.manual_seed(number)
            shape, device = tensor.shape, tensor.device
            seeds.append(torch.randn(shape, generator=generator, device=device).to(tensor.dtype))
        parameters = [p for p in module.parameters() if p.requires_grad]
        grads = torch.autograd.grad(floats, parameters, seeds, allow_unused=True)
    return [t.detach() for t in floats], [g for g in grads if g is not None]


def _twins(torch: Any, value: Any) -> Any:
    """Copy the tensors in call arguments: a forward may write into them; their graph stays."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(_twins(torch, v) for v in value)
    if type(value) is dict:
        return {k: _twins(torch, v) for k, v in value.items()}
    return value


def optimizer_probe(torch: Any, optimizer: Any) -> ProbeRecord | None:
    """Compare one update of a fused optimizer with the plain one, against float64.

    On copies of some parameters with their gradients and state; None when nothing is fused.
    """
    group = next((g for g in optimizer.param_groups if g.get("fused")), None)
    if group is None:
        return None
    chosen, values = [], 0
    for p in group["params"]:
        if p.grad is not None and values + p.numel() <= PROBED_VALUES:
            chosen.append(p)
            values += p.numel()
    if not chosen:
        return ProbeRecord(what="optimizer", error=None, yard=None, problem="no gradients seen")
    try:
        fused = _update(torch, optimizer, chosen, group, fused=True, dtype=None)
        plain = _update(torch, optimizer, chosen, group, fused=False, dtype=None)
        exact = _update(torch, optimizer, chosen, group, fused=False, dtype=torch.float64)
        error, yard = _distance(fused, exact), _distance(plain, exact)
    except FAULTS as fault:
        return ProbeRecord(what="optimizer", error=None, yard=None, problem=_reason(fault))
    return ProbeRecord(what="optimizer", error=error, yard=yard)


def _update(
    torch: Any, optimizer: Any, chosen: list[Any], group: Any, *, fused: bool, dtype: Any
) -> list[Any]:
    def copied(value: Any, *, counter: bool = False) -> Any:
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value)
        value = local(value.detach())
        wide = dtype is not None and value.is_floating_point() and not counter
        return value.to(dtype if wide else value.dtype).clone()

    copies = []
    for p in chosen:
        twin = copied(p).requires_grad_()
        twin.grad = copied(p.grad)
        copies.append(twin)
    # A group holds more than the constructor takes (AdamW's decoupled_weight_decay).
    taken = inspect.signature(type(optimizer).__init__).parameters
    options = {k: v for k, v in group.items() if k in taken and k not in ("fused", "foreach")}
    options.pop("params", None)
    other = type(optimizer)(copies, **options, fused=fused, foreach=False)
    for p, twin in zip(chosen, copies, strict=True):
        state = optimizer.state.get(p, {})
        other.state[twin] = {k: copied(v, counter=k == "step") for k, v in state.items()}
    # The class's own step without its hooks: ours would take it for an update of the job.
    step = type(other).step
    getattr(step, "__wrapped__", step)(other)
    return [twin.detach() - copied(p) for p, twin in zip(chosen, copies, strict=True)]


def _distance(found: list[Any], reference: list[Any]) -> float:
    """The norm of the difference over the reference's norm, over all tensors together.

    Raises:
        ValueError: shapes differ, or the reference is zero everywhere, which shows nothing.
    """
    if [t.shape for t in found] != [t.shape for t in reference]:
        raise ValueError("the plain computation gives tensors of other shapes")
    both = zip(found, reference, strict=True)
    apart = sum(float((a.double() - r.double()).square().sum()) for a, r in both)
    size = sum(float(r.double().square().sum()) for r in reference)
    if size == 0:
        raise ValueError("the plain computation gives zeros only")
    return float((apart / size) ** 0.5)


@contextmanager
def _kept_buffers(torch: Any, module: Any) -> Iterator[None]:
    """Put the buffers back: a probe must not move BatchNorm's statistics, nor start from them.

    A forward may also put another tensor in a buffer's place.
    """
    before = [
        (m._buffers, name, b, b.detach().clone())
        for m in module.modules()
        for name, b in m._buffers.items()
        if b is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffers, name, buffer, value in before:
                buffers[name] = buffer
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


@contextmanager
def _kept_randomness(torch: Any) -> Iterator[None]:
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices), kept_randomness(torch):
        yield
