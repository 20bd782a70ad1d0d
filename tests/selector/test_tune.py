"""`tune` around its starts: what is stored when it ends early, and what it goes on with."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from contracts.example_tuning import example_tuning
from contracts.memory_store import MemoryTuningStore

from aiak_tune.errors import JobError, NotFoundError, UsageError
from aiak_tune.optimizations.base import Settings
from aiak_tune.selector.job import job_facts
from aiak_tune.selector.reporter import Silent
from aiak_tune.selector.request import Request
from aiak_tune.selector.results import Failed, TuningResult
from aiak_tune.selector.tune import tune

FAILS = (sys.executable, "-c", "print('epoch 1'); raise ValueError('no data')")


@pytest.fixture(autouse=True)
def nothing_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.fixture
def store() -> MemoryTuningStore:
    return MemoryTuningStore()


def _only(store: MemoryTuningStore) -> TuningResult:
    (tuning,) = store.newest(limit=5)
    return tuning


def _unfinished(store: MemoryTuningStore) -> TuningResult:
    """A tuning of FAILS that has its baseline and a trial."""
    known = example_tuning(verdict="interrupted", best=None, confirmation=())
    base = job_facts(FAILS)
    job = replace(known.job, fingerprint=base.fingerprint, command=base.command)
    tuning = replace(known, job=job)
    store.save(tuning)
    return tuning


def test_a_script_that_always_fails_ends_the_tuning_with_its_words(
    store: MemoryTuningStore,
) -> None:
    with pytest.raises(JobError, match="exit code 1: ValueError: no data; it has to run") as raised:
        tune(Request(command=FAILS), store=store, reporter=Silent())
    assert "epoch 1" in raised.value.tail
    tuning = _only(store)
    assert tuning.verdict == "failed"
    assert tuning.verdict_reason == str(raised.value)
    assert tuning.finished_at is not None
    (trial,) = tuning.trials
    assert isinstance(trial, Failed)
    assert trial.log_tail is not None and "ValueError: no data" in trial.log_tail


def test_an_interrupt_is_a_result_that_is_stored(store: MemoryTuningStore) -> None:
    class Interrupting(Silent):
        def started(self, what: str, settings: Settings) -> None:
            raise KeyboardInterrupt

    result = tune(Request(command=FAILS), store=store, reporter=Interrupting())
    assert result.verdict == "interrupted"
    assert _only(store) == result


def test_what_hinders_the_tool_leaves_a_tuning_to_go_on_with(
    store: MemoryTuningStore, tmp_path: Path
) -> None:
    before = _unfinished(store)
    request = Request(command=FAILS, resume=True, runs_dir=tmp_path / "none", trials=20)
    with pytest.raises(JobError, match="no run folder can be made"):
        tune(request, store=store, reporter=Silent())
    now = _only(store)
    assert (now.id, now.verdict, now.trials) == (before.id, "interrupted", before.trials)
    assert "no run folder can be made" in (now.verdict_reason or "")
    assert store.last_unfinished(before.job.fingerprint) == now


def test_there_must_be_something_to_resume(store: MemoryTuningStore) -> None:
    with pytest.raises(NotFoundError, match="no unfinished tuning of"):
        tune(Request(command=FAILS, resume=True), store=store, reporter=Silent())
    with pytest.raises(NotFoundError, match="no tuning '01JE'"):
        request = Request(command=FAILS, resume=True, resume_id="01JE")
        tune(request, store=store, reporter=Silent())


def test_another_jobs_tuning_is_not_gone_on_with(store: MemoryTuningStore) -> None:
    before = _unfinished(store)
    request = Request(command=("true",), resume=True, resume_id=before.id)
    with pytest.raises(UsageError, match=f"tuning {before.id} is of another job"):
        tune(request, store=store, reporter=Silent())
    assert _only(store) == before


@pytest.mark.parametrize("names", [{"only": ("warp-drive",)}, {"exclude": ("warp-drive",)}])
def test_an_unknown_optimization_is_refused_before_a_start(
    names: dict[str, tuple[str, ...]], store: MemoryTuningStore
) -> None:
    request = replace(Request(command=FAILS), **names)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no optimization is called 'warp-drive'"):
        tune(request, store=store, reporter=Silent())
    assert store.newest(limit=1) == ()
