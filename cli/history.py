"""`aiak-tune history`: the tunings in the store, the newest first."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from aiak_tune.cli.options import Verbs, add_json_option, positive

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aiak_tune.selector.results import TuningResult

EMPTY = "No tuning is stored yet. Next: `aiak-tune tune -- python train.py`, with your own command"
ID_LENGTH = 10  # a ULID's time part: two tunings begin in the same millisecond only by mistake


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    verb = verbs.add_parser("history", help="past tunings and what they gained")
    verb.add_argument("--limit", type=positive, default=20, metavar="N", help="so many (20)")
    verb.add_argument("--job", metavar="NAME", help="only of jobs with this name, as train.py")
    add_json_option(verb)
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a line for each tuning; an empty store says what to do."""
    from aiak_tune.api.store import open_store
    from aiak_tune.cli.output import emit, plain

    with open_store() as store:
        if args.job is None:
            tunings = store.newest(limit=args.limit)
        else:
            tunings = store.newest_of_name(args.job, limit=args.limit)
    document = {"schema": 1, "kind": "history", "tunings": [_summary(t) for t in tunings]}
    if tunings:
        emit([_table(tunings)], document, json=args.json)
    else:
        none = EMPTY if args.job is None else f"No tuning of a job named {args.job!r} is stored"
        emit([plain(none)], document, json=args.json)
    return 0


def _summary(tuning: TuningResult) -> dict[str, Any]:
    best, environment = tuning.best, tuning.environment
    return {
        "id": tuning.id,
        "created_at": tuning.created_at,
        "name": tuning.job.name,
        "fingerprint": tuning.job.fingerprint,
        "verdict": tuning.verdict,
        "speedup": None if best is None else best.speedup,
        "ci95": None if best is None else list(best.ci95),
        "settings": {} if best is None else {k: dict(v) for k, v in best.settings.items()},
        "trials": len(tuning.trials),
        "gpu": environment.gpu,
        "cpu": environment.cpu,
        "torch": environment.torch,
    }


def _table(tunings: tuple[TuningResult, ...]) -> RenderableType:
    from aiak_tune.cli import output

    made = output.table("id", "when", "job", "result", "settings", "machine")
    id_, when, _, result, settings, _ = made.columns
    # At 80 columns ids, dates, results and the catalog's names stay whole; jobs and machines fold.
    when.width, settings.min_width = len("2026-12-01"), len("fused-optimizer")
    result.no_wrap = id_.no_wrap = True
    for tuning in tunings:
        best = tuning.best
        gain = "" if best is None else f" {output.ratio(best.speedup)}\n"
        made.add_row(
            output.plain(tuning.id[:ID_LENGTH]),
            output.moment(tuning.created_at),
            output.plain(tuning.job.name),
            tuning.verdict + gain + ("" if best is None else output.interval(best.ci95)),
            output.plain("" if best is None else output.settings_names(best.settings)),
            output.plain(output.machine_text(tuning.environment)),
        )
    return made
