"""`aiak-tune explain`: a plan in words, and the lines that do the same by hand."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aiak_tune.cli.lookup import PLAN_OR_ID
from aiak_tune.cli.options import Verbs, add_json_option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aiak_tune.selector.explanation import Explained, Explanation
    from aiak_tune.selector.results import Plan


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    verb = verbs.add_parser(
        "explain", help="a plan in words: each setting, why, and the lines to do it by hand"
    )
    verb.add_argument("plan", metavar="PLAN", help=PLAN_OR_ID)
    add_json_option(verb)
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print each setting, then the lines for the shell and for the script."""
    from aiak_tune.cli.lookup import plan_and_tuning
    from aiak_tune.cli.output import emit
    from aiak_tune.selector.explanation import explain_plan

    explanation = explain_plan(*plan_and_tuning(args.plan))
    emit(_screen(explanation), document(explanation), json=args.json)
    return 0


def document(explanation: Explanation) -> dict[str, Any]:
    """Return the explanation as JSON has it."""
    from aiak_tune.selector import explanation as texts

    plan = explanation.plan
    return {
        "schema": 1,
        "kind": "explanation",
        "tuning_id": plan.tuning_id,
        "name": plan.job.name,
        "speedup": plan.speedup,
        "ci95": None if plan.ci95 is None else list(plan.ci95),
        "numerics": plan.numerics.value,
        "evidence": plan.evidence,
        "settings": [_setting(s) for s in explanation.settings],
        "shell": {"where": texts.SHELL, "lines": explanation.shell},
        "script": {
            "where": texts.SCRIPT,
            "imports": explanation.imports,
            "lines": explanation.script,
        },
        "not_by_hand": list(explanation.not_by_hand),
    }


def _setting(setting: Explained) -> dict[str, Any]:
    return {
        "optimization": setting.optimization,
        "params": dict(setting.params),
        "stage": setting.stage.value,
        "summary": setting.summary,
        "why": setting.why,
        "bound": setting.bound,
        "speedup_alone": setting.alone,
        "imports": list(setting.imports),
        "lines": setting.lines,
    }


def gain_text(plan: Plan) -> str:
    """Return what all settings together bring, and what stands behind the figure."""
    from aiak_tune.cli import output

    if plan.speedup is None:
        return f"No speed-up was measured for this very job (evidence: {plan.evidence})."
    interval = "" if plan.ci95 is None else f" (95% interval {output.interval(plan.ci95)})"
    return (
        f"All together: {output.ratio(plan.speedup)} the speed of the job as written{interval}, "
        f"{plan.evidence}; numerics: {plan.numerics.value}."
    )


def _screen(explanation: Explanation) -> Iterator[RenderableType]:
    from aiak_tune.cli import output
    from aiak_tune.selector import explanation as texts

    plan = explanation.plan
    yield output.plain(
        f"{plan.job.name} on {output.machine_text(plan.environment)}, tuning {plan.tuning_id}",
        style="bold",
    )
    if not explanation.settings:
        yield output.plain("The plan has no settings: the job runs as written.")
        return
    yield output.plain(gain_text(plan))
    for setting in explanation.settings:
        yield from _told(setting)
    if explanation.shell:
        yield from _block(f"By hand, {texts.SHELL}:", explanation.shell)
    if explanation.imports:
        yield from _block("By hand, at the top of the script:", explanation.imports)
    if explanation.script:
        yield from _block(f"By hand, {texts.SCRIPT}:", explanation.script)
    yield output.plain("")
    yield output.plain("Not by hand:", style="bold")
    for text in explanation.not_by_hand:
        yield output.plain(f"- {text}")


def _told(setting: Explained) -> Iterator[RenderableType]:
    from aiak_tune.cli import output

    yield output.plain("")
    yield output.plain(output.settings_text({setting.optimization: setting.params}), style="bold")
    yield output.plain(f"  {setting.summary} ({setting.stage.value} stage)")
    if setting.why is not None:
        most = f"; at most {output.ratio(setting.bound)}" if setting.bound else ""
        yield output.plain(f"  why: {setting.why}{most}")
    if setting.alone is not None:
        yield output.plain(f"  alone, in one trial: {output.ratio(setting.alone)} as written")


def _block(title: str, lines: str) -> Iterator[RenderableType]:
    from aiak_tune.cli import output

    yield output.plain("")
    yield output.plain(title, style="bold")
    yield output.plain("")
    for line in lines.splitlines():
        yield output.code(line)
