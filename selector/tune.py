"""`tune`: baseline, search by real trials, confirmation, verdict; every step is stored."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from aiak_tune.errors import AiakTuneError, JobError, NotFoundError, StoreError, UsageError
from aiak_tune.optimizations.base import Optimization
from aiak_tune.optimizations.catalog import CATALOG
from aiak_tune.profiles.workload import Environment, JobFacts
from aiak_tune.selector.campaign import Campaign
from aiak_tune.selector.folders import data_folder, made
from aiak_tune.selector.job import job_facts
from aiak_tune.selector.leader import Leader
from aiak_tune.selector.lock import machine_lock, one_at_a_time
from aiak_tune.selector.plan import dump_plan, plan_of
from aiak_tune.selector.redaction import redact_tuning
from aiak_tune.selector.rendezvous import gathered, this_machine
from aiak_tune.selector.reporter import Reporter
from aiak_tune.selector.request import Request, chosen
from aiak_tune.selector.results import Measured, TuningResult, TuningStore, Verdict
from aiak_tune.selector.side_effects import later_files
from aiak_tune.selector.starts import Starter


def tune(
    request: Request,
    *,
    store: TuningStore,
    reporter: Reporter,
    catalog: Sequence[Optimization] = CATALOG,
) -> TuningResult:
    """Tune the job; the result is in the store too, from the first trial on.

    Raises:
        UsageError: no command, an optimization that does not exist, another job's tuning.
        NotFoundError: nothing to resume.
        JobError: the job as written gave no figure (the tuning is stored as failed).
        StoreError: the store failed.
    """
    entries = chosen(catalog, request)
    base = job_facts(request.command)
    tuning = _resumed(request, store, base) if request.resume else _new(request, base)
    folder = made(data_folder())
    runs_dir = request.runs_dir or made(folder / "runs")
    what = " ".join(base.command)[:200]
    with one_at_a_time(machine_lock(), what, wait=request.wait, note=reporter.note):
        if request.rendezvous is None:
            return _run(request, store, reporter, entries, tuning, runs_dir)
        with _leading(request, reporter) as leader:
            result = _run(request, store, reporter, entries, tuning, runs_dir, leader)
            found = plan_of(redact_tuning(result))
            plan = None if found is None else dump_plan(found)
            leader.end(result.verdict, result.verdict_reason, plan)
            return result


@contextmanager
def _leading(request: Request, reporter: Reporter) -> Iterator[Leader]:
    """Every node's tool is here inside, and hears of it when this one fails."""
    assert request.rendezvous is not None
    with gathered(request.rendezvous, request.command, this_machine(), reporter.note) as links:
        leader = Leader(links)
        try:
            yield leader
        except (AiakTuneError, KeyboardInterrupt) as error:
            leader.end("failed", str(error) or "interrupted", None)
            raise


def _run(
    request: Request,
    store: TuningStore,
    reporter: Reporter,
    entries: Sequence[Optimization],
    tuning: TuningResult,
    runs_dir: Path,
    leader: Leader | None = None,
) -> TuningResult:
    copied = Path.cwd() if request.workdir_copy else None
    starter = Starter(
        request.command, runs_dir, reporter, entries,
        keep=request.keep_logs, copied=copied, leader=leader,
    )  # fmt: skip
    campaign = Campaign(request, store, reporter, entries, starter, tuning)
    began = time.monotonic()
    spent = tuning.duration_s or 0.0

    def ended(result: TuningResult) -> TuningResult:
        duration_s = spent + time.monotonic() - began
        warnings = (*result.warnings, *later_files(starter.left))
        return replace(result, finished_at=_now(), duration_s=duration_s, warnings=warnings)

    try:
        result = ended(campaign.run())
    except KeyboardInterrupt:
        result = ended(replace(campaign.tuning, verdict="interrupted"))
    except JobError as error:
        # What hinders the tool itself later on (a full disk) leaves a tuning to go on with.
        measured = any(isinstance(t, Measured) for t in campaign.tuning.trials)
        verdict: Verdict = "interrupted" if measured else "failed"
        failed = replace(campaign.tuning, verdict=verdict, verdict_reason=str(error))
        with suppress(StoreError):  # the job's error is the one to tell
            store.save(ended(failed))
        raise
    store.save(result)
    return result


def _new(request: Request, base: JobFacts) -> TuningResult:
    from ulid import ULID

    return TuningResult(
        id=str(ULID()),
        created_at=_now(),
        job=base,
        environment=Environment(),
        numerics_limit=request.numerics,
    )


def _resumed(request: Request, store: TuningStore, base: JobFacts) -> TuningResult:
    if request.resume_id is not None:
        found = store.find(request.resume_id)
        if found is None:
            raise NotFoundError("tuning", request.resume_id)
        if found.job.fingerprint != base.fingerprint:
            raise UsageError(
                f"tuning {found.id} is of another job ({' '.join(found.job.command)}): give the "
                "same command in the same folder, or leave --resume out"
            )
    else:
        found = store.last_unfinished(base.fingerprint)
        if found is None:
            raise NotFoundError("unfinished tuning of", base.name)
    return replace(found, verdict="running", verdict_reason=None, finished_at=None)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
