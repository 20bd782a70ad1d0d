"""A guest never raises into the job: a fault is told once, and the job runs on without us."""

from __future__ import annotations

import copy
import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # at its first import it wraps torch.manual_seed: not in the midst of a test
from slices import QUICK, Points, armed, guesting, net, train
from torch import nn
from torch.amp import GradScaler
from torch.utils.data import DataLoader, dataloader

from aiak_tune.agent.guest import GUEST, guest
from aiak_tune.agent.slicing import Slice

PLACES: dict[str, Any] = {
    "iter": (DataLoader, "__iter__"),
    "next": (dataloader._BaseDataLoaderIter, "__next__"),
    "index": (dataloader._BaseDataLoaderIter, "_next_index"),
    "init": (dataloader._BaseDataLoaderIter, "__init__"),
    "call": (nn.Module, "__call__"),
    "backward": (torch.autograd, "backward"),
    "scaler": (GradScaler, "step"),
    "seed": (torch, "manual_seed"),
    "profiler": (torch.profiler.profile, "__init__"),
    "legacy": (torch.autograd.profiler.profile, "__enter__"),
}


def all_places() -> dict[str, Any]:
    return {name: vars(owner)[attribute] for name, (owner, attribute) in PLACES.items()}


HOOKS = [
    "loader_started", "batch_arrived", "optimizer_begins", "update_ended", "loss_seen",
    "root_called", "root_found", "express_ended",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "at"),
    # A window that is late is looked at after each step, and full after three.
    [(n, at) for n in HOOKS for at in (1, 2, 5) if (n, at) != ("express_ended", 5)],
)
def test_a_hook_that_raises_detaches_everything_and_the_training_goes_on(
    tmp_path: Path, name: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = all_places()
    calls: list[int] = []

    def broken(self: Slice, *args: Any, **kwargs: Any) -> None:
        calls.append(1)
        if len(calls) >= at:
            raise ZeroDivisionError("ours")

    broken.__qualname__ = name
    monkeypatch.setattr(Slice, name, broken)
    steps: list[int] = []
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    # The window's short path has one hook; the others are called in the warm-up alone.
    late = name == "express_ended"
    plan = replace(
        QUICK, warmup=3 if late else 10, steps=40, max_window_s=0.0 if late else QUICK.max_window_s
    )
    with armed(tmp_path, plan):
        train(DataLoader(Points(48), batch_size=8), model, optimizer, 2, steps.append)
        faulted = len(calls) >= at
        assert GUEST.detached is faulted
        if faulted:
            assert all_places() == plain and "__call__" not in vars(nn.Sequential)
    assert len(steps) == 12 and all_places() == plain
    if not faulted:
        assert name in ("loader_started", "root_found") and at > 1, "called too rarely"
        return
    assert len(calls) == at, "later hooks are silent"
    [fault] = list(tmp_path.glob("fault-*.txt"))
    assert "ZeroDivisionError: ours" in fault.read_text() and name in fault.read_text()


def test_the_first_fault_is_told_even_on_a_full_disk(tmp_path: Path) -> None:
    @guest
    def hook() -> int:
        raise ValueError("first")

    with guesting(tmp_path / "missing"):
        assert hook() is None
        assert GUEST.detached and hook() is None


def test_an_undo_that_fails_holds_none_of_the_others(tmp_path: Path) -> None:
    done: list[str] = []

    def fails() -> None:
        raise TypeError("cannot set")

    with guesting(tmp_path):
        GUEST.leave += [lambda: done.append("first"), fails, lambda: done.append("last")]
        GUEST.detach()
    assert done == ["last", "first"]


def test_interrupts_pass(tmp_path: Path) -> None:
    @guest
    def hook() -> None:
        raise KeyboardInterrupt

    with guesting(tmp_path), pytest.raises(KeyboardInterrupt):
        hook()


def test_what_the_job_patched_over_ours_stays_when_we_leave(tmp_path: Path) -> None:
    plain = DataLoader.__iter__
    with armed(tmp_path):
        ours = DataLoader.__iter__

        def theirs(self: Any) -> Any:
            return ours(self)

        DataLoader.__iter__ = theirs  # type: ignore[method-assign]
    assert DataLoader.__iter__ is theirs
    assert len(list(DataLoader(Points(8), batch_size=4))) == 2
    DataLoader.__iter__ = plain  # type: ignore[method-assign]


class Whole(nn.Module):
    """A model of the job's own, as it pickles them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = net()

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def test_a_watched_model_is_copied_and_saved_as_without_us(tmp_path: Path) -> None:
    model = Whole()
    keys = list(model.state_dict())
    before = set(vars(model)), {n: set(vars(m)) for n, m in model.named_modules()}
    with armed(tmp_path) as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        train(DataLoader(Points(32), batch_size=8), model, optimizer, 1)
        assert list(model.state_dict()) == keys
        assert (set(vars(model)), {n: set(vars(m)) for n, m in model.named_modules()}) == before
        assert not model._forward_pre_hooks
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        twins = [
            copy.deepcopy(model),
            pickle.loads(pickle.dumps(model)),
            torch.load(file, weights_only=False),
        ]
        asides = list(run.clock._asides)
        for twin in twins:
            with torch.no_grad():
                assert torch.equal(twin(torch.ones(2, 4)), model.layers(torch.ones(2, 4)))
        assert run.clock._asides == asides, "a copy (an EMA model) is another module"
        pickle.dumps(optimizer)


def test_iterators_with_persistent_workers_end_with_their_loader(tmp_path: Path) -> None:
    with armed(tmp_path):
        loader = DataLoader(Points(8), batch_size=4, num_workers=1, persistent_workers=True)
        list(loader)
        iterator: Any = loader._iterator
        processes = iterator._workers
        del iterator, loader
        assert not any(w.is_alive() for w in processes), "without a garbage collection"
