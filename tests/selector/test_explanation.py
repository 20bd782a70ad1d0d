"""The lines of every catalog entry as `explain` puts them together."""

import ast

import pytest

from aiak_tune.optimizations.base import Numerics, Optimization, Stage
from aiak_tune.optimizations.catalog import CATALOG
from aiak_tune.profiles.workload import Environment
from aiak_tune.selector.explanation import Explanation, explain_plan, split_imports
from aiak_tune.selector.results import Plan, PlanJob


def explained(*entries: Optimization) -> Explanation:
    settings = {e.name: {name: v[0] for name, v in e.space.items()} for e in entries}
    return explain_plan(
        Plan(
            tuning_id="x",
            job=PlanJob(fingerprint=None, model_fingerprint=None, name="train.py"),
            environment=Environment(),
            settings=settings,
            speedup=None,
            ci95=None,
            numerics=Numerics.CHANGING,
        )
    )


@pytest.mark.parametrize("entry", CATALOG, ids=lambda e: e.name)
def test_lines_keep_all_that_the_entry_says(entry: Optimization) -> None:
    explanation = explained(entry)
    if entry.stage is Stage.ENVIRONMENT:
        assert explanation.shell and not explanation.script
        return
    assert not explanation.shell
    assert not any(
        isinstance(n, ast.Import | ast.ImportFrom) for n in ast.parse(explanation.script).body
    )
    params = {name: values[0] for name, values in entry.space.items()}
    whole = ast.parse(entry.by_hand(params)).body
    parts = ast.parse(explanation.imports + explanation.script).body
    assert sorted(map(ast.unparse, whole)) == sorted(map(ast.unparse, parts))


def test_all_together_the_lines_are_python_and_no_import_comes_twice() -> None:
    explanation = explained(*CATALOG)
    compile(explanation.imports + explanation.script, "by hand", "exec")
    imports = explanation.imports.splitlines()
    assert len(imports) == len(set(imports))
    stages = [list(Stage).index(s.stage) for s in explanation.settings]
    assert stages == sorted(stages)


def test_imports_of_several_lines_are_taken_out_whole() -> None:
    imports, lines = split_imports(
        "import a\nfrom b import (\n    c,\n    d,\n)\n\nx = 1\nimport e\n"
    )
    assert imports == ("import a", "from b import c, d", "import e")
    assert lines == "x = 1\n"
