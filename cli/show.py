"""`aiak-tune show`: one tuning with everything that was measured."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from aiak_tune.cli.options import Verbs, add_json_option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aiak_tune.selector.results import TuningResult


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    verb = verbs.add_parser("show", help="one tuning: its verdict, trials and settings")
    verb.add_argument("id", metavar="ID", help="as in `aiak-tune history` (8 characters), or last")
    add_json_option(verb)
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one tuning; an id that fits none or several is an error."""
    from aiak_tune.api.store import open_store
    from aiak_tune.api.store.documents import tuning_document
    from aiak_tune.cli.lookup import find_tuning
    from aiak_tune.cli.output import emit

    with open_store() as store:
        tuning = find_tuning(store, args.id)
    emit(_screen(tuning), tuning_document(tuning), json=args.json)
    return 0


def _screen(tuning: TuningResult) -> Iterator[RenderableType]:
    from aiak_tune.cli import output, sections, verdict

    yield output.plain(
        f"{tuning.job.name} on {output.machine_text(tuning.environment)}, "
        f"{output.moment(tuning.created_at)}, tuning {tuning.id}",
        style="bold",
    )
    if tuning.profile is not None:
        yield output.plain(sections.steps_text(tuning.profile))
        yield output.breakdown_table(tuning.profile)
        yield from sections.ranks_table(tuning.profile)
    if tuning.findings:
        yield sections.findings_table(tuning.findings, "What fits")
    if tuning.trials:
        yield sections.trials_table(tuning)
    if tuning.confirmation:
        yield sections.confirmation_table(tuning)
    yield from sections.winners(tuning)
    yield from sections.notes(tuning.warnings, tuning.profile.warnings if tuning.profile else ())
    yield output.plain("")
    # Last, where the eye is when the printing ends.
    yield output.plain(verdict.verdict_sentence(tuning), style="bold")
    yield output.command(verdict.next_step(tuning))
