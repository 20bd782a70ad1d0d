"""`aiak-tune catalog`: the optimizations that a tuning may try."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from aiak_tune.cli.options import Verbs, add_json_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from aiak_tune.optimizations.base import Numerics, Optimization, Scalar


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    verb = verbs.add_parser("catalog", help="the optimizations that a tuning may try")
    add_json_option(verb)
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a row for each optimization, in the catalog's order."""
    from aiak_tune.cli.output import emit, plain
    from aiak_tune.optimizations.catalog import CATALOG

    document = {
        "schema": 1,
        "kind": "catalog",
        "optimizations": [entry_document(entry) for entry in CATALOG],
    }
    level = "level 0 works on the unmodified command; 1 and 2 want a line in the script"
    emit([_table(CATALOG), plain(level)], document, json=args.json)
    return 0


def entry_document(entry: Optimization) -> dict[str, Any]:
    """Return one entry as JSON has it."""
    return {
        "name": entry.name,
        "summary": entry.summary,
        "stage": entry.stage.value,
        "level": entry.level,
        "numerics": [n.value for n in classes(entry)],
        "addresses": sorted(c.value for c in entry.addresses),
        "space": {name: list(values) for name, values in entry.space.items()},
        "conflicts": sorted(entry.conflicts),
    }


def classes(entry: Optimization) -> list[Numerics]:
    """Return the numerics classes that it has on its own examples, each value tried once."""
    first = {name: values[0] for name, values in entry.space.items()}
    tries = [first] + [
        {**first, name: value} for name, values in entry.space.items() for value in values[1:]
    ]
    found = {entry.numerics(e.profile, params) for e in entry.examples for params in tries}
    return sorted(found, key=lambda n: n.reach)


def _table(entries: Sequence[Optimization]) -> RenderableType:
    from rich.text import Text

    from aiak_tune.cli import output

    made = output.table("name", "stage", "level", "numerics", "addresses", "what it does")
    made.columns[0].no_wrap = made.columns[1].no_wrap = made.columns[3].no_wrap = True
    for entry in entries:
        told = entry_document(entry)
        lines = [entry.summary]
        lines += [f"{name}: {values_text(values)}" for name, values in entry.space.items()]
        if entry.conflicts:
            lines.append(f"not together with {', '.join(told['conflicts'])}")
        made.add_row(
            output.plain(entry.name, style="bold"),
            told["stage"],
            str(entry.level),
            "\n".join(told["numerics"]),
            "\n".join(told["addresses"]),
            Text("\n").join(output.plain(line) for line in lines),
        )
    return made


def values_text(values: Sequence[Scalar]) -> str:
    """Return `1–32` for a run of whole numbers, else the values."""
    numbers = [v for v in values if type(v) is int]
    if len(numbers) == len(values) > 3 and numbers == [*range(numbers[0], numbers[-1] + 1)]:
        return f"{numbers[0]}–{numbers[-1]}"
    return ", ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in values)
