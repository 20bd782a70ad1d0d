"""A plan explained: each setting, why, what it gained, and the lines to write for it by hand."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiak_tune.optimizations.base import Optimization, Params, Stage
from aiak_tune.optimizations.catalog import by_name
from aiak_tune.selector.results import Measured, Plan, TuningResult

SHELL = "in the shell or the job file, before the command"
SCRIPT = (
    "in the script, on each rank, where model, optimizer and training loader are all made, under "
    "these three names, and before the first step"
)
# What `run` does beside the settings: no line in a script has it.
NEVER_BY_HAND = (
    "the check that the model and the machine are those of the plan: the gain may not hold for "
    "others",
    "the second start as written when the job dies early",
    "objects that a framework makes inside itself (Trainer, Lightning): give it the same as its "
    "own options, or let `aiak-tune run` reach them",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One setting of a plan.

    `why`: the finding it was tried for; `alone`: its speed in a trial with nothing else, as a
    multiple of the job as written, one start and not confirmed; both None where not known.
    `imports` and `lines` are empty where there is nothing to write by hand.
    """

    optimization: str
    params: Params
    stage: Stage
    summary: str
    why: str | None
    bound: float | None
    alone: float | None
    imports: tuple[str, ...]
    lines: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A plan, its settings in order of stage, and what no line by hand does."""

    plan: Plan
    settings: tuple[Explained, ...]
    not_by_hand: tuple[str, ...]

    @property
    def shell(self) -> str:
        """The lines for a shell; empty where there are none."""
        return "".join(s.lines for s in self.settings if s.stage is Stage.ENVIRONMENT)

    @property
    def imports(self) -> str:
        """The imports that `script` needs, for the top of the script."""
        wanted = dict.fromkeys(line for s in self.settings for line in s.imports)
        return "".join(f"{line}\n" for line in sorted(wanted, key=_import_order))

    @property
    def script(self) -> str:
        """The lines for the script, each setting's below a comment with its name."""
        return "\n".join(
            f"# {s.optimization}: {s.summary}\n{s.lines}"
            for s in self.settings
            if s.lines and s.stage is not Stage.ENVIRONMENT
        )


def explain_plan(plan: Plan, tuning: TuningResult | None = None) -> Explanation:
    """Explain a plan whose settings this version knows; its tuning adds why and single gains."""
    stages = list(Stage)
    ordered = sorted(plan.settings, key=lambda name: stages.index(by_name[name].stage))
    explained = tuple(_explained(by_name[n], plan.settings[n], tuning) for n in ordered)
    nothing = tuple(
        f"{s.optimization}: no line in a script does it; `aiak-tune run` does"
        for s in explained
        if not s.lines
    )
    never = NEVER_BY_HAND if explained else ()
    return Explanation(plan=plan, settings=explained, not_by_hand=(*nothing, *never))


def _explained(entry: Optimization, params: Params, tuning: TuningResult | None) -> Explained:
    written = entry.by_hand(params)
    shell = entry.stage is Stage.ENVIRONMENT
    imports, lines = ((), written) if shell else split_imports(written)
    findings = () if tuning is None else tuning.findings
    found = next((f for f in findings if f.optimization == entry.name and f.fits), None)
    return Explained(
        optimization=entry.name,
        params=params,
        stage=entry.stage,
        summary=entry.summary,
        why=None if found is None else found.reason,
        bound=None if found is None else found.bound,
        alone=None if tuning is None else _alone(tuning, {entry.name: params}),
        imports=imports,
        lines=lines,
    )


def _alone(tuning: TuningResult, settings: Mapping[str, Params]) -> float | None:
    """Return the speed of the trial with these settings alone against the first as written."""
    measured = [t for t in tuning.trials if isinstance(t, Measured)]
    base = next((t.samples_per_s for t in measured if not t.settings), None)
    rates = [t.samples_per_s for t in measured if t.settings == settings]
    return rates[0] / base if rates and base else None


def split_imports(lines: str) -> tuple[tuple[str, ...], str]:
    """Take the imports out of Python lines.

    In a function an import makes its name local from the function's first line on, so lines put
    in the middle of one would break what uses `torch` above them.
    """
    tree = ast.parse(lines)
    found = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    taken = {n for node in found for n in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    rest = [line for n, line in enumerate(lines.splitlines(), 1) if n not in taken]
    return tuple(ast.unparse(node) for node in found), _trimmed(rest)


def _trimmed(lines: Iterable[str]) -> str:
    text = "\n".join(lines).strip("\n")
    return f"{text}\n" if text else ""


def _import_order(line: str) -> tuple[bool, str]:
    return line.startswith("from "), line
