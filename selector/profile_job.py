"""`profile`: one slice of the job as written, its breakdown, and what the catalog says of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from aiak_tune.errors import JobError
from aiak_tune.optimizations.base import Finding, Optimization
from aiak_tune.optimizations.catalog import CATALOG, judge
from aiak_tune.profiles.workload import WorkloadProfile
from aiak_tune.selector.folders import data_folder, made
from aiak_tune.selector.job import job_facts
from aiak_tune.selector.lock import machine_lock, one_at_a_time
from aiak_tune.selector.measure import profile_of
from aiak_tune.selector.reporter import Reporter
from aiak_tune.selector.request import Request, chosen
from aiak_tune.selector.results import FindingRecord
from aiak_tune.selector.starts import Start, Starter


def find(
    profile: WorkloadProfile, catalog: Sequence[Optimization]
) -> dict[str, tuple[Optimization, Finding]]:
    """Judge each entry on the profile, the largest bound first; what does not fit comes last."""
    judged = {entry.name: (entry, judge(entry, profile)) for entry in catalog}
    order = sorted(judged, key=lambda n: (not judged[n][1].fits, -(judged[n][1].bound or 0.0), n))
    return {name: judged[name] for name in order}


def records(found: dict[str, tuple[Optimization, Finding]]) -> tuple[FindingRecord, ...]:
    """Return the findings as the documents have them."""
    return tuple(
        FindingRecord(optimization=name, fits=f.fits, reason=f.reason, bound=f.bound)
        for name, (_, f) in found.items()
    )


def profile_job(
    request: Request,
    *,
    reporter: Reporter,
    trace: Path | None = None,
    tensorboard: Path | None = None,
    catalog: Sequence[Optimization] = CATALOG,
) -> tuple[WorkloadProfile, tuple[FindingRecord, ...]]:
    """Profile one slice of the job; keep rank 0's trace where asked.

    Raises:
        JobError: no figure came out; the job's last lines are in `tail`.
    """
    base = job_facts(request.command)
    runs_dir = request.runs_dir or made(data_folder() / "runs")
    copied = Path.cwd() if request.workdir_copy else None
    starter = Starter(
        request.command, runs_dir, reporter, catalog, keep=request.keep_logs, copied=copied
    )
    what = " ".join(base.command)[:200]
    with one_at_a_time(machine_lock(), what, wait=request.wait, note=reporter.note):
        start = starter.start("profile", {}, request.slice)
    try:
        if start.problem is not None:
            raise JobError(start.problem.advice, tail=start.problem.tail)
        profile = profile_of(start.records, start.run_dir, base, request.slice)
        _keep_trace(start, trace, tensorboard)
    finally:
        starter.forget(start)
    found = find(profile, chosen(catalog, request))
    reporter.profiled(profile, records(found))
    return profile, records(found)


def _keep_trace(start: Start, trace: Path | None, tensorboard: Path | None) -> None:
    name = start.records[0].trace
    if name is None:
        if trace or tensorboard:
            raise JobError("there is no trace to keep: no step could be profiled")
        return
    try:
        if trace is not None:
            _copy(start.run_dir / name, trace)
        if tensorboard is not None:
            tensorboard.mkdir(parents=True, exist_ok=True)
            for record in start.records:
                place = tensorboard / f"rank{record.rank}.pt.trace.json"
                _copy(start.run_dir / (record.trace or name), place)
    except OSError as error:
        raise JobError(f"the trace cannot be written: {error}") from error


def _copy(source: Path, target: Path) -> None:
    if target.suffix == ".gz":
        import gzip

        with open(source, "rb") as plain, gzip.open(target, "wb", compresslevel=3) as packed:
            shutil.copyfileobj(plain, packed)
        return
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as beside:
        Path(beside.name).unlink()
    shutil.copyfile(source, beside.name)
    Path(beside.name).replace(target)
