"""Settings in a slice: each stage meets its target, and what happened is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import QUICK, Points, net, record_of, train
from torch import nn
from torch.utils.data import DataLoader

from aiak_tune.agent.settings import Applier
from aiak_tune.optimizations.base import Applied, Stage
from aiak_tune.optimizations.catalog import CATALOG, by_name

WORKERS: Any = {
    "data-workers": {
        "num_workers": 1, "prefetch_factor": 2, "pin_memory": False, "persistent_workers": False,
    }
}  # fmt: skip
AMP: Any = {"amp": {"dtype": "bfloat16"}}
FUSED: Any = {"fused-optimizer": {}}


def started(loader: DataLoader[Any]) -> int:
    return loader.num_workers


def job(evaluate: bool = False, again: bool = False, **more: Any) -> list[Any]:
    """A job with a held-out loader; returns what the loaders became."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    data, held_out = Points(16), Points(16)
    training = DataLoader(data, batch_size=4, **more)
    checking = DataLoader(held_out, batch_size=4)
    seen: list[Any] = [training, checking]
    job.seen = seen  # type: ignore[attr-defined]

    def check() -> None:
        model.eval()
        with torch.no_grad():
            for x, _ in checking:
                model(x)
        model.train()

    if evaluate:
        check()
    for _ in range(100):
        if again:
            training = DataLoader(data, batch_size=4, **more)
            seen.append(training)
        train(training, model, optimizer, epochs=1)
        if evaluate:
            check()
    return seen


@pytest.mark.parametrize("evaluate", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_the_loader_that_trains_is_changed_and_made_anew_again(
    tmp_path: Path, evaluate: bool, again: bool
) -> None:
    record = record_of(tmp_path, lambda: job(evaluate, again), replace(QUICK, warmup=6), WORKERS)
    training, checking, *anew = job.seen  # type: ignore[attr-defined]
    assert checking.num_workers == 0
    assert again or training.num_workers == 1
    assert len(anew) >= 3 * again and all(loader.num_workers == 1 for loader in anew)
    assert str(record.effects["data-workers"]).endswith("from 1 worker processes")
    assert record.facts["loader"]["num_workers"] == 0, "as the job made it"
    assert record.facts["loader"]["batch_bytes"] is None, "parity alone looks into batches"


def test_a_pass_over_another_loader_before_training(tmp_path: Path) -> None:
    """As for the data's mean: which loader trains shows only at the first update."""

    def with_mean() -> None:
        for _ in DataLoader(Points(6), batch_size=2):
            pass
        job()

    record = record_of(tmp_path, with_mean, QUICK, WORKERS)
    assert job.seen[0].num_workers == 1  # type: ignore[attr-defined]
    assert record.effects["data-workers"] and record.facts["loader"]["batches_per_epoch"] == 4


def test_settings_that_change_nothing_have_no_effect(tmp_path: Path) -> None:
    record = record_of(tmp_path, lambda: job(num_workers=1, prefetch_factor=2), QUICK, WORKERS)
    assert record.effects == {"data-workers": None}

    def half() -> None:
        model = net().bfloat16()
        optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
        for x, y in DataLoader(Points(), batch_size=8):
            nn.functional.mse_loss(model(x.bfloat16()), y.bfloat16()).backward()
            optimizer.step()

    assert record_of(tmp_path, half, QUICK, AMP | FUSED).effects == {
        "amp": None,
        "fused-optimizer": None,
    }


def test_each_root_of_a_gan_is_changed(tmp_path: Path) -> None:
    def gan() -> None:
        maker, judge = nn.Linear(2, 4), net()
        ours = [torch.optim.AdamW(m.parameters()) for m in (judge, maker)]
        for _ in DataLoader(Points(), batch_size=8):
            judge(maker(torch.randn(8, 2))).mean().backward()
            for optimizer in ours:
                optimizer.step()
                optimizer.zero_grad()

    effects = record_of(tmp_path, gan, QUICK, AMP | FUSED).effects
    assert len(str(effects["amp"]).split(";")) == 1, "both say the same"
    assert "forwards under autocast" in str(effects["amp"])
    assert "4 tensors" in str(effects["fused-optimizer"])
    assert "2 tensors" in str(effects["fused-optimizer"])


class Faulty:
    """Stands for an entry of the catalog."""

    name = "faulty"
    stage = Stage.PROCESS

    def __init__(self, where: str, error: type[Exception]) -> None:
        self.where, self.error = where, error

    def apply(self, target: Any, params: Any) -> Applied | None:
        def effect() -> str:
            if self.where == "effect":
                raise self.error("broken")
            return "fine"

        if self.where == "apply":
            raise self.error("broken")
        return Applied(undo=lambda: None, effect=effect)


@pytest.mark.parametrize("where", ["apply", "effect", "nowhere"])
@pytest.mark.parametrize("error", [KeyError, AssertionError, RuntimeError, OSError, ImportError])
def test_an_entry_that_raises_is_told_and_the_others_go_on(
    where: str, error: type[Exception]
) -> None:
    applier = Applier({})
    applier._settings = {Faulty(where, error): {}, by_name["amp"]: AMP["amp"]}  # type: ignore[dict-item]
    applier.stage(Stage.PROCESS, torch)
    model = net()
    applier.stage(Stage.MODEL, model)
    model(torch.ones(2, 4))
    effects = applier.effects()
    assert effects["amp"] == "1 forwards under autocast"
    assert (effects["faulty"] is None) == (where != "nowhere")
    assert ("broken" in applier.problems.get("faulty", "")) == (where != "nowhere")
    applier.undo()
    model(torch.ones(2, 4))
    assert not applier.applied


def test_each_stage_applies_its_entries_in_the_catalogs_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However a plan lists them: who is applied last wins, or stands outermost."""
    met: list[tuple[str, Stage]] = []
    now: list[Stage] = []

    def applies(self: Any, target: Any, params: Any) -> None:
        assert target is now and params == {"of": self.name}
        met.append((self.name, now[-1]))

    for cls in {type(entry) for entry in CATALOG}:
        monkeypatch.setattr(cls, "apply", applies)
    applier = Applier({entry.name: {"of": entry.name} for entry in reversed(CATALOG)})
    for stage in Stage:
        now.append(stage)
        applier.stage(stage, now)
    wanted = [(e.name, e.stage) for stage in Stage for e in CATALOG if e.stage is stage]
    assert met == wanted and len(met) == len(CATALOG)
    assert applier.effects() == dict.fromkeys([e.name for e in CATALOG])


def test_a_number_of_threads_that_was_chosen_outlasts_the_cores_that_were() -> None:
    """Bound to fewer cores torch gets fewer threads, but not where their number is a setting."""
    process = [e.name for e in CATALOG if e.stage is Stage.PROCESS]
    assert process.index("cpu-affinity") < process.index("threads")
