"""Rules of the job side that no import-linter contract states: what it may name at all."""

import ast
import sys
from pathlib import Path

import pytest
from tree import modules, on_job_side

JOB_SIDE = {name: path for name, path in modules().items() if on_job_side(name)}
TOOL_SIDE = modules().keys() - JOB_SIDE.keys()
# What an environment may have; all but torch are looked for inside the function that uses them.
OF_THE_JOB = {"liger_kernel", "torch", "triton"}
# The bootstrap hides another `sitecustomize`, and runs it.
KNOWN = sys.stdlib_module_names | OF_THE_JOB | {"aiak_tune", "sitecustomize"}


@pytest.mark.parametrize("name", JOB_SIDE)
def test_the_job_side_names_nothing_but_the_standard_library_and_torch(name: str) -> None:
    imports = _imports(JOB_SIDE[name])
    assert {name for name in imports if name.partition(".")[0] not in KNOWN} == set()


@pytest.mark.parametrize("name", JOB_SIDE)
def test_the_job_side_uses_no_module_of_the_tool(name: str) -> None:
    assert _imports(JOB_SIDE[name]) & TOOL_SIDE == set()


def _imports(path: Path) -> set[str]:
    """Modules that a file imports anywhere; from `from a import b`, both `a` and `a.b`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found
