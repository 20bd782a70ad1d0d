"""Options that several verbs share, and the types of their values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from aiak_tune.agent.spec import SlicePlan

# What `add` of a verb gets: argparse has no public name for it.
Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

PLAN_FILE = Path("aiak-plan.json")
_DURATION = re.compile(r"(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m)?(?:(?P<s>\d+)s)?\Z")
# The user's steps count, whatever they take; without --steps a slow job gets a shorter slice.
_LONGEST_WINDOW_S = 24 * 3600.0


def add_job_verb(
    verbs: Verbs, name: str, *, help: str, description: str
) -> argparse.ArgumentParser:
    """Declare a verb that takes the training command behind `--`."""
    usage = f"aiak-tune {name} [options] -- COMMAND ..."
    verb = verbs.add_parser(name, help=help, description=description, usage=usage)
    verb.set_defaults(takes_command=True)
    return verb


def add_json_option(
    verb: argparse.ArgumentParser,
    *,
    help: str = "write the result as JSON too; - for stdout, where nothing else is printed then",
) -> None:
    """Add `--json FILE`, as every verb has it."""
    verb.add_argument("--json", metavar="FILE", help=help)


def add_interpreter_options(verb: argparse.ArgumentParser) -> None:
    """Let a verb look into the job's own environment: by its interpreter, or by its command."""
    verb.usage = f"{verb.prog} [options] [-- COMMAND ...]"
    verb.add_argument(
        "--python", metavar="PATH",
        help="the job's interpreter (the one that COMMAND starts, else `python`)",
    )  # fmt: skip
    verb.set_defaults(may_take_command=True)


def add_slice_options(verb: argparse.ArgumentParser) -> None:
    """Add how long the slice is; the figures are SlicePlan's, which help does not load."""
    verb.add_argument("--steps", type=positive, metavar="N", help="count so many steps (20)")
    verb.add_argument(
        "--warmup", type=at_least(0), metavar="N", help="so many steps before them (12)"
    )
    verb.add_argument(
        "--workdir-copy", action="store_true",
        help="start the job in a copy of this folder each time (20000 files and 2 GiB at most)",
    )  # fmt: skip


def slice_of(args: argparse.Namespace) -> SlicePlan:
    """Return the slice as asked for."""
    from dataclasses import replace

    from aiak_tune.agent.spec import SlicePlan

    plan = SlicePlan()
    if args.steps is not None:
        plan = replace(plan, steps=args.steps, max_window_s=_LONGEST_WINDOW_S)
    if args.warmup is not None:
        plan = replace(plan, warmup=args.warmup, parity=min(plan.parity, args.warmup))
    return plan


def at_least(lowest: int) -> Callable[[str], int]:
    """Return an argparse type: a whole number from `lowest` on."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < lowest:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {lowest}")
        return int(text)

    return read


positive = at_least(1)


def seconds(text: str) -> float:
    """Return the seconds of `90s`, `10m`, `1h` or `1h30m`: an argparse type."""
    found = _DURATION.match(text)
    hours, minutes, rest = (int(part or 0) for part in found.groups()) if found else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + rest
    if total == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 90s, 10m or 1h30m")
    return float(total)


def names(text: str) -> tuple[str, ...]:
    """Return the names in `amp,data-workers`: an argparse type."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise argparse.ArgumentTypeError("no name given: `aiak-tune catalog` lists them")
    return found
