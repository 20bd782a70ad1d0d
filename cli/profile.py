"""`aiak-tune profile`: runs a slice of the job and says where each step's time goes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aiak_tune.cli.options import Verbs, add_job_verb, add_json_option, add_slice_options, slice_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aiak_tune.profiles.workload import WorkloadProfile
    from aiak_tune.selector.results import FindingRecord


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    verb = add_job_verb(
        verbs,
        "profile",
        help="where each step's time goes, and what fits",
        description="Run a short slice of the job, unmodified, and say where each step's time "
        "goes and which optimizations fit.",
    )
    add_slice_options(verb)
    verb.add_argument("--trace", type=Path, metavar="FILE", help="keep the profiler's trace there")
    verb.add_argument(
        "--tensorboard", type=Path, metavar="DIR", help="write the trace for TensorBoard there"
    )
    add_json_option(verb)
    verb.set_defaults(run=run, stoppable=True)


def run(args: argparse.Namespace) -> int:
    """Print breakdown, findings and what to run next."""
    from aiak_tune.api.store.documents import profile_document
    from aiak_tune.cli.files import check_targets
    from aiak_tune.cli.output import emit
    from aiak_tune.cli.progress import reporting
    from aiak_tune.selector.profile_job import profile_job
    from aiak_tune.selector.request import Request

    check_targets(args.trace, args.json)
    request = Request(command=args.command, slice=slice_of(args), workdir_copy=args.workdir_copy)
    with reporting(args.command) as reporter:
        profile, findings = profile_job(
            request, reporter=reporter, trace=args.trace, tensorboard=args.tensorboard
        )
    shown = screen(profile, findings, trace=args.trace, tensorboard=args.tensorboard)
    emit(shown, profile_document(profile, findings), json=args.json)
    return 0


def screen(
    profile: WorkloadProfile,
    findings: Sequence[FindingRecord],
    *,
    trace: Path | None = None,
    tensorboard: Path | None = None,
) -> Iterator[RenderableType]:
    """Return what is printed of a profile."""
    from aiak_tune.cli import output, sections

    yield output.plain(
        f"{profile.job.name} on {output.machine_text(profile.environment)}", style="bold"
    )
    yield output.plain(sections.steps_text(profile))
    yield output.breakdown_table(profile)
    yield from sections.ranks_table(profile)
    if findings:
        yield sections.findings_table(findings, "What fits")
    yield from sections.notes(profile.warnings)
    if trace is not None:
        yield output.plain(f"The trace is in {trace}: chrome://tracing and Perfetto read it.")
    if tensorboard is not None:
        yield output.plain(f"For TensorBoard: tensorboard --logdir {tensorboard}")
    yield output.plain("")
    yield from _next(profile, findings)


def _next(profile: WorkloadProfile, findings: Sequence[FindingRecord]) -> Iterator[RenderableType]:
    from aiak_tune.cli import output, verdict

    fitting = [finding.optimization for finding in findings if finding.fits]
    if findings and not fitting:
        yield output.plain("Nothing in the catalog fits this job: a tuning has nothing to try.")
        return
    command = verdict.job_words(profile.job.command)
    yield output.command(f"Next, to measure what fits: {verdict.program()} tune -- {command}")
