"""What the hooks count as a step in loops as people write them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from slices import QUICK, Points, column, net, plain_job, record_of, rows, train
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.utils.data import DataLoader

from aiak_tune.agent.records import SliceRecord
from aiak_tune.selector.breakdown import (
    BATCHES,
    FETCH,
    MICRO,
    SAMPLES,
    STEP,
)


def check_sums(record: SliceRecord) -> None:
    for row in rows(record):
        values = [v or 0 for v in row]
        assert values[FETCH] <= values[STEP]
    assert record.window is not None
    steps = sum(v or 0 for v in column(record, STEP))
    assert steps <= record.window.wall_ns <= steps + 5_000_000


def test_a_plain_loop(tmp_path: Path) -> None:
    record = record_of(tmp_path, plain_job)
    assert record.status == "complete" and record.warmup_steps == 3
    assert len(rows(record)) == 6
    assert column(record, SAMPLES) == [8] * 6 and column(record, MICRO) == [1] * 6
    assert all((row[FETCH] or 0) > 0 for row in rows(record))
    assert record.facts["optimizer_facts"]["step_ms"] > 0
    assert record.moved and record.facts["optimizer"] == "SGD"
    assert not record.facts["grad_scaler"]
    check_sums(record)


def test_a_loop_without_a_loader(tmp_path: Path) -> None:
    def job() -> None:
        model = net()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(100):
            model(torch.randn(5, 4)).mean().backward()
            optimizer.step()

    record = record_of(tmp_path, job)
    assert len(rows(record)) == 6 and column(record, BATCHES) == [0] * 6
    assert column(record, SAMPLES) == [None] * 6
    assert record.facts["batch_shapes"] == [[5, 4]]
    check_sums(record)


def test_what_runs_while_the_model_is_made_is_no_root(tmp_path: Path) -> None:
    class Measured(nn.Module):
        """Runs zeros through itself to learn a size, as ultralytics and timm's heads do."""

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 8)
            self.head = nn.Linear(self.forward_body(torch.zeros(1, 4)).shape[1], 1)

        def forward_body(self, x: Tensor) -> Tensor:
            """Call a part of the model that is not called yet."""
            out: Tensor = self.body(x)
            return out

        def forward(self, x: Tensor) -> Tensor:
            """Run both parts."""
            out: Tensor = self.head(self.forward_body(x))
            return out

    def job() -> None:
        model = Measured()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(100):
            model(torch.randn(5, 4)).mean().backward()
            optimizer.step()

    record = record_of(tmp_path, job)
    assert record.facts["model"]["class"] == "Measured"
    assert record.facts["batch_shapes"] == [[5, 4]]


@pytest.mark.parametrize("bad", [None, 5])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_grad_scaler(tmp_path: Path, bad: int | None, enabled: bool) -> None:
    if bad and not enabled:
        pytest.skip("nothing is skipped then")

    def job() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        scaler = GradScaler("cpu", enabled=enabled)
        for step, (x, y) in enumerate(DataLoader(Points(), batch_size=8)):
            loss = nn.functional.mse_loss(model(x), y)
            if step == bad:
                loss = loss * float("inf")
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    record = record_of(tmp_path, job)
    assert record.window is not None
    assert len(rows(record)) == 6, "the skipped step is a step"
    assert record.window.updates_skipped == (1 if bad else 0)
    assert record.facts["grad_scaler"] is enabled
    check_sums(record)


@pytest.mark.parametrize("ahead", [False, True])
def test_accumulation_with_and_without_fetching_ahead(tmp_path: Path, ahead: bool) -> None:
    def job() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(100):
            batches: Any = DataLoader(Points(48), batch_size=4)
            for number, (x, y) in enumerate(one_ahead(batches) if ahead else batches):
                nn.functional.mse_loss(model(x), y).backward()
                if number % 3 == 2:
                    optimizer.step()
                    optimizer.zero_grad()

    record = record_of(tmp_path, job)
    assert column(record, MICRO) == [3] * 6
    per_epoch = [3, 3, 3, 3] if not ahead else [4, 3, 3, 2]
    seen = [b or 0 for b in column(record, BATCHES)]
    assert any(seen == (per_epoch * 3)[i : i + 6] for i in range(4)), seen
    assert column(record, SAMPLES) == [4 * b for b in seen]
    check_sums(record)


def one_ahead(loader: Any) -> Iterator[Any]:
    batches = iter(loader)
    current = next(batches)
    for after in batches:
        yield current
        current = after
    yield current


def test_the_last_step_of_an_epoch_may_fetch_nothing(tmp_path: Path) -> None:
    def job() -> None:
        model = net()
        loader: Any = DataLoader(Points(8), batch_size=4)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(100):
            for x, y in one_ahead(loader):
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()

    record = record_of(tmp_path, job)
    assert sorted(set(map(str, column(record, SAMPLES)))) == ["8", "None"]


@pytest.mark.parametrize("how", ["no_grad", "eval", "other_root", "loader_only"])
def test_an_evaluation_in_between_is_left_out(tmp_path: Path, how: str) -> None:
    slow_ns = 50_000_000

    def job() -> None:
        model, wrapped = net(), nn.Sequential()
        wrapped.append(model)
        root = wrapped if how == "other_root" else model
        held_out = DataLoader(Points(64), batch_size=8)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def evaluate(step: int) -> None:
            if step % 4:
                return
            model.eval()
            pause(slow_ns)
            with torch.set_grad_enabled(how == "eval"):
                for x, _ in held_out:
                    if how != "loader_only":
                        model(x)
            model.train()

        train(DataLoader(Points(), batch_size=8), root, optimizer, each=evaluate)

    record = record_of(tmp_path, job, replace(QUICK, steps=8))
    assert record.window is not None and record.window.mixed == 2
    assert column(record, SAMPLES) == [8] * 6
    assert record.window.wall_ns < slow_ns
    check_sums(record)


def pause(ns: int) -> None:
    threading.Event().wait(ns / 1e9)


def test_training_in_eval_mode_is_training(tmp_path: Path) -> None:
    def job() -> None:
        model = net().eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        train(DataLoader(Points(), batch_size=8), model, optimizer)

    record = record_of(tmp_path, job, replace(QUICK, profiled=2))
    assert record.window is not None and record.window.mixed == 0
    assert len(rows(record)) == 6 and len(record.profiled) == 2


def test_a_teacher_in_every_step_is_no_evaluation(tmp_path: Path) -> None:
    def job() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for x, _ in DataLoader(Points(), batch_size=8):
            with torch.no_grad():
                target = model(x)
            nn.functional.mse_loss(model(x), target + 1).backward()
            optimizer.step()

    record = record_of(tmp_path, job, replace(QUICK, profiled=2))
    assert record.window is not None and record.window.mixed == 0
    assert len(rows(record)) == 6 and len(record.profiled) == 2


def gan(critic: int, warm_up: int = 0) -> None:
    maker, judge = nn.Linear(2, 4), net()
    of_maker = torch.optim.Adam(maker.parameters())
    of_judge = torch.optim.Adam(judge.parameters())
    for step, (x, _) in enumerate(DataLoader(Points(), batch_size=8)):
        fake = maker(torch.randn(8, 2))
        (judge(fake.detach()).mean() - judge(x).mean()).backward()
        of_judge.step()
        of_judge.zero_grad()
        if step >= warm_up and step % critic == critic - 1:
            judge(fake).mean().backward()
            of_maker.step()
            of_maker.zero_grad()


@pytest.mark.parametrize(("critic", "warm_up"), [(1, 0), (5, 0), (1, 7)])
def test_a_gan(tmp_path: Path, critic: int, warm_up: int) -> None:
    record = record_of(tmp_path, lambda: gan(critic, warm_up))
    assert record.status == "complete"
    assert column(record, SAMPLES) == [8 * critic] * 6
    assert column(record, MICRO) == [critic + 1] * 6
    assert record.facts["optimizer"] == "Adam"


def test_an_optimizer_that_comes_in_the_window_starts_it_anew(tmp_path: Path) -> None:
    record = record_of(tmp_path, lambda: gan(1, warm_up=7), replace(QUICK, warmup=4))
    assert record.status == "complete" and column(record, MICRO) == [2] * 6
    assert record.warmup_steps > 7


def test_irregular_optimizers_are_said(tmp_path: Path) -> None:
    def job() -> None:
        model = net()
        either = [torch.optim.SGD(model.parameters(), lr=1e-4) for _ in range(2)]
        draws = torch.Generator().manual_seed(3)
        for x, y in DataLoader(Points(), batch_size=2):
            nn.functional.mse_loss(model(x), y).backward()
            either[int(torch.randint(2, (), generator=draws))].step()

    assert record_of(tmp_path, job, replace(QUICK, warmup=390)).status == "irregular"


def test_a_closure(tmp_path: Path) -> None:
    def job() -> None:
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=3)
        for x, y in DataLoader(Points(), batch_size=8):

            def closure(x: Any = x, y: Any = y) -> Any:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)

    record = record_of(tmp_path, job)
    assert len(rows(record)) == 6 and column(record, SAMPLES) == [8] * 6
    assert all((m or 0) >= 2 for m in column(record, MICRO))
    check_sums(record)


def test_a_loader_iterated_inside_a_closure(tmp_path: Path) -> None:
    def job() -> None:
        model = net()
        loader = DataLoader(Points(), batch_size=8)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        batches = iter(loader)

        def closure() -> Any:
            x, y = next(batches)
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        for _ in range(100):
            optimizer.step(closure)

    record = record_of(tmp_path, job)
    assert column(record, BATCHES) == [1] * 6 and column(record, SAMPLES) == [8] * 6
    assert all((row[FETCH] or 0) > 0 for row in rows(record))
    check_sums(record)


def test_an_optimizer_around_another_is_one_update(tmp_path: Path) -> None:
    class Around(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner
            super().__init__(inner.param_groups, {})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.inner.step()

    def job() -> None:
        model = net()
        optimizer = Around(torch.optim.SGD(model.parameters(), lr=1e-3))
        train(DataLoader(Points(), batch_size=8), model, optimizer)

    record = record_of(tmp_path, job)
    assert column(record, SAMPLES) == [8] * 6


def test_batches_fetched_in_another_thread(tmp_path: Path) -> None:
    """Their time is not the training thread's; what they hold counts."""

    def job() -> None:
        model = net()
        ready: queue.Queue[Any] = queue.Queue(2)
        over = threading.Event()

        def fetch() -> None:
            for batch in DataLoader(Points(), batch_size=8):
                while not over.is_set():
                    try:
                        ready.put(batch, timeout=0.01)
                        break
                    except queue.Full:
                        continue

        thread = threading.Thread(target=fetch, daemon=True)
        thread.start()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        try:
            while True:
                x, y = ready.get()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
        finally:
            over.set()
            thread.join()

    record = record_of(tmp_path, job)
    assert column(record, FETCH) == [0] * 6
    assert abs(sum(s or 0 for s in column(record, SAMPLES)) - 48) <= 16
    check_sums(record)


def test_a_loop_in_a_thread_of_its_own(tmp_path: Path) -> None:
    def job() -> None:
        ended: list[BaseException] = []

        def run() -> None:
            try:
                plain_job()
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        raise ended[0]

    record = record_of(tmp_path, job)
    assert column(record, SAMPLES) == [8] * 6
    assert all((row[FETCH] or 0) > 0 for row in rows(record))


class Broken(RuntimeError):
    """The job's own error, which it catches."""


@pytest.mark.parametrize("where", ["fetch", "backward", "closure", "inner", "scaler", "forward"])
def test_an_error_that_the_job_catches_leaves_the_clock_balanced(
    tmp_path: Path, where: str
) -> None:
    numbers = count()

    class Sometimes(Points):
        def __getitem__(self, index: int) -> Any:
            if where == "fetch" and index % 40 == 13:
                raise Broken
            return super().__getitem__(index)

    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            if where == "backward" and next(numbers) % 5 == 2:
                raise Broken
            return gradient

    class Inner(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            if where == "inner" and next(numbers) % 5 == 2:
                raise Broken
            return super().step(closure)

    def job() -> None:
        model = net()
        optimizer = Inner(model.parameters(), lr=1e-3)
        scaler = GradScaler("cpu")
        batches = iter(DataLoader(Sometimes(), batch_size=4))

        def closure() -> Any:
            if where == "closure" and next(numbers) % 5 == 2:
                raise Broken
            return None

        while True:
            try:
                x, y = next(batches)
                if where == "forward" and next(numbers) % 5 == 2:
                    model(x[:, :2])
                loss = nn.functional.mse_loss(Breaks.apply(model(x)), y)  # type: ignore[no-untyped-call]
                if where == "scaler":
                    if next(numbers) % 5 == 2:
                        scaler.step(optimizer)  # no gradients were scaled: it asserts
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    loss.backward()
                    optimizer.step(closure)
            except (RuntimeError, AssertionError):
                scaler = GradScaler("cpu")
            except StopIteration:
                return

    record = record_of(tmp_path, job, replace(QUICK, steps=20))
    assert record.status == "complete" and len(rows(record)) == 20
    check_sums(record)


def test_a_job_that_ends_early_leaves_what_there_is(tmp_path: Path) -> None:
    def job(steps: int) -> None:
        model = net()
        loader = DataLoader(Points(8 * steps), batch_size=8)
        train(loader, model, torch.optim.SGD(model.parameters(), lr=1e-3), epochs=1)

    record = record_of(tmp_path, lambda: job(7))
    assert record.status == "short" and len(rows(record)) == 4
    record = record_of(tmp_path, lambda: job(2))
    assert record.status == "short" and record.window is None and record.warmup_steps == 2
