"""Hooks beside torch.compile: no graph break more, and `fullgraph=True` still works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import Points, column, net, record_of, train
from torch import nn
from torch.utils.data import DataLoader

from aiak_tune.selector.breakdown import MICRO, SAMPLES


class Counting:
    """Dynamo's eager backend, counting graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return graph.forward


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(net(), nn.Sequential(nn.Linear(1, 1)))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Nested(Model):
    """Has a module of its own class inside: the wrapper on the class is met in the region."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Model()

    def forward(self, x: Any) -> Any:
        return self.inner(x) + self.layers(x)


class Recursive(nn.Module):
    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.layer = Recursive(depth - 1) if depth else net()

    def forward(self, x: Any) -> Any:
        return self.layer(x)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


# `compile()` in place compiles nothing of torch's own classes, whoever asks.
@pytest.mark.parametrize(
    ("make", "how"),
    [(m, h) for m in (Model, Nested, Recursive, net) for h in ("outer", "in_place")][:-1],
)
def test_a_compiled_model_stays_one_graph(
    tmp_path: Path, make: Callable[[], nn.Module], how: str
) -> None:
    def job(counting: Counting) -> None:
        model: Any = make()
        if how == "outer":
            model = torch.compile(model, backend=counting, fullgraph=True)
        else:
            model.compile(backend=counting, fullgraph=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        train(DataLoader(Points(160), batch_size=8), model, optimizer, epochs=1)

    plain, ours = Counting(), Counting()
    job(plain)
    torch._dynamo.reset()
    record = record_of(tmp_path, lambda: job(ours))
    assert ours.graphs == plain.graphs <= 1
    assert record.status == "complete" and record.facts["compiled"]
    assert column(record, SAMPLES) == [8] * 6


def test_a_compiled_step_with_its_backward_breaks_no_oftener(tmp_path: Path) -> None:
    def job(counting: Counting) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        @torch.compile(backend=counting)
        def step(x: Any, y: Any) -> Any:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss * 2

        for x, y in DataLoader(Points(160), batch_size=8):
            optimizer.zero_grad()
            step(x, y)
            optimizer.step()

    plain, ours = Counting(), Counting()
    job(plain)
    torch._dynamo.reset()
    record = record_of(tmp_path, lambda: job(ours))
    # One break makes two graphs. The model's is compiled once more when the search for roots is
    # over: dynamo guards on Module.__call__, and here no module is the outermost.
    assert plain.graphs == 2 and ours.graphs <= 3
    assert column(record, MICRO) == [1] * 6
