"""`aiak-tune doctor`: what this machine has and lacks, and what each lack costs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from aiak_tune.cli.options import Verbs, add_interpreter_options, add_json_option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aiak_tune.selector.health import Check


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    verb = verbs.add_parser(
        "doctor",
        help="what this machine has and lacks",
        description="Look at hardware, software, storage and limits, and say what is missing and "
        "what it would bring. Exit code 1: something is missing that keeps a catalog entry from "
        "working or the job from being measured; 0: nothing is.",
    )
    add_interpreter_options(verb)
    verb.add_argument(
        "--storage", type=Path, metavar="DIR",
        help="measure how fast files are read there, with one of 128 MiB that is gone after (.)",
    )  # fmt: skip
    add_json_option(verb)
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a line for each check."""
    from aiak_tune.cli.output import emit
    from aiak_tune.errors import UsageError
    from aiak_tune.selector.health import check_all
    from aiak_tune.selector.interpreter import ask, interpreter_of
    from aiak_tune.selector.storage import read_test

    folder = (args.storage or Path.cwd()).resolve()
    if not folder.is_dir():
        raise UsageError(f"--storage {args.storage}: there is no such folder")
    python = ask(args.python or interpreter_of(args.command))
    test = read_test(folder)
    checks = check_all(python, test)
    missing = [check for check in checks if check.state == "missing"]
    document = {
        "schema": 1,
        "kind": "doctor",
        "checks": [asdict(check) for check in checks],
        "storage": {**asdict(test), "bytes_per_s": test.bytes_per_s},
        "interpreter": python.executable,
        "environment": asdict(python.environment),
    }
    emit(_screen(checks, len(missing)), document, json=args.json)
    return 1 if missing else 0


def _screen(checks: Sequence[Check], missing: int) -> Iterator[RenderableType]:
    from aiak_tune.cli import output

    styles = {"ok": "", "note": "yellow", "missing": "bold red"}
    made = output.table("what", "", "found, and what would help")
    made.columns[0].no_wrap = made.columns[1].no_wrap = True
    for check in checks:
        said = check.found + (f"\n{check.remedy}" if check.remedy else "")
        cell = output.plain(check.found)
        for line in said.splitlines()[1:]:
            cell.append("\n").append(output.plain(f"→ {line}"))
        made.add_row(output.plain(check.name), check.state, cell, style=styles[check.state])
    yield made
    if missing:
        yield output.plain(f"{missing} missing: each line says what it would bring.", style="bold")
    else:
        yield output.plain("Nothing is missing.", style="bold")
