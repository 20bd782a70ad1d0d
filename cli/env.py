"""`aiak-tune env`: where a job would run, or a plan as variables and a command prefix."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiak_tune.cli.lookup import PLAN_OR_ID
from aiak_tune.cli.options import Verbs, add_interpreter_options, add_json_option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aiak_tune.selector.interpreter import Interpreter


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    verb = verbs.add_parser(
        "env",
        help="where a job would run; of a plan: its variables and command prefix",
        description="Without a plan: the facts of this machine and of the job's own interpreter, "
        "which a plan is tied to. With one: the plan as lines for a job file or a pod.",
    )
    verb.add_argument("plan", nargs="?", metavar="PLAN", help=PLAN_OR_ID)
    add_interpreter_options(verb)
    add_json_option(verb)
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the facts, or the plan's lines."""
    from aiak_tune.cli.output import emit, plain
    from aiak_tune.selector.interpreter import ask, interpreter_of

    if args.plan is not None:
        variables, prefix = _of_plan(args.plan)
        document: dict[str, Any] = {
            "schema": 1, "kind": "plan_environment", "variables": variables, "prefix": prefix,
        }  # fmt: skip
        emit(_lines(variables, prefix), document, json=args.json)
        return 0
    python = ask(args.python or interpreter_of(args.command))
    facts = _facts(python)
    shown = [plain(f"{name:22} {_text(value)}") for name, value in facts.items()]
    emit(shown, {"schema": 1, "kind": "environment", **facts}, json=args.json)
    return 0


def _facts(python: Interpreter) -> dict[str, Any]:
    """Return the fields of a profile's `environment`, and the interpreter they come from."""
    return {
        "interpreter": python.executable,
        "torch_problem": python.torch_problem,
        "cuda_problem": python.cuda_problem,
        **asdict(python.environment),
    }


def _text(value: object) -> str:
    if isinstance(value, list):
        return ".".join(map(str, value))
    return "–" if value is None else str(value)


def _of_plan(name: str) -> tuple[dict[str, str], list[str]]:
    """Return the plan's variables, and the words before the command for its other settings."""
    from aiak_tune.cli.lookup import plan_and_tuning
    from aiak_tune.errors import PlanError
    from aiak_tune.optimizations.base import NoEffectError, Stage
    from aiak_tune.optimizations.catalog import by_name

    plan, _ = plan_and_tuning(name)
    variables: dict[str, str] = {}
    outside = [n for n in plan.settings if by_name[n].stage is Stage.ENVIRONMENT]
    for each in outside:
        try:
            by_name[each].apply(variables, plan.settings[each])
        except NoEffectError as error:
            raise PlanError(f"{each}: {error}") from error
    if len(outside) == len(plan.settings):
        return variables, []
    place = Path(name)
    choice = ["--plan", str(place.resolve())] if place.exists() else ["--recommend"]
    return variables, ["aiak-tune", "run", *choice, "--"]


def _lines(variables: dict[str, str], prefix: list[str]) -> Iterator[RenderableType]:
    from aiak_tune.cli import output

    if not variables and not prefix:
        yield output.code("# The plan has no settings: the job runs as written.")
    if variables:
        yield output.code("# Before the command:")
    for name, value in variables.items():
        yield output.code(f"export {name}={shlex.quote(value)}")
    if prefix:
        yield output.code("# In front of the command; it sets the variables above too:")
        yield output.code(f"{shlex.join(prefix)} ")
