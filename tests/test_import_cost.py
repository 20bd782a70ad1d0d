"""What an import pulls in, seen from fresh interpreters."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tree import ROOT, modules, on_job_side

SRC = ROOT / "src"
JOB_SIDE = [name for name in modules() if on_job_side(name)]
OPS = [name for name in JOB_SIDE if name.startswith("aiak_tune.ops")]
WITHOUT_TORCH = [name for name in JOB_SIDE if name not in OPS]
TOOL_ONLY = ("alembic", "fastapi", "msgspec", "numpy", "optuna", "orjson", "rich", "sqlalchemy")


def test_the_package_loads_none_of_its_modules() -> None:
    loaded = _python("import aiak_tune, json, sys; print(json.dumps(sorted(sys.modules)))")
    assert [name for name in json.loads(loaded) if name.startswith("aiak_tune.")] == []


def test_step_done_costs_nothing_without_a_listener() -> None:
    loaded = _python(
        "before = set(sys.modules); import aiak_tune; aiak_tune.step_done(samples=8); "
        "aiak_tune.step_done(); import json; print(json.dumps(sorted(set(sys.modules) - before)))",
        "-S",
    )
    assert {"torch", "aiak_tune.agent"} & set(json.loads(loaded)) == set()


def test_help_loads_no_heavy_library() -> None:
    blocked = _block("fastapi", "optuna", "sqlalchemy", "torch", "uvicorn")
    start = "runpy.run_module('aiak_tune', run_name='__main__')"
    shown = _python(f"{blocked}; import runpy; sys.argv = ['aiak-tune', '--help']; {start}")
    assert "usage: aiak-tune" in shown


def test_a_job_that_runs_as_written_waits_for_no_library_of_ours() -> None:
    heavy = ("aiak_tune.optimizations", "aiak_tune.profiles", *TOOL_ONLY, "cattrs", "yaml")
    code = (
        "sys.argv = ['aiak-tune', 'run', '--', 'true']; import aiak_tune.cli.main as m; m.main(); "
        f"print([n for n in sys.modules if n.startswith({heavy!r})])"
    )
    assert _python(code) == "[]\n"


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_a_job_side_module_needs_the_standard_library_alone(name: str) -> None:
    _python(_load(name), "-S")  # -S: no site-packages, neither the venv's nor another's


def test_the_job_side_loads_in_python_3_10() -> None:
    old = _find_python("3.10")
    if old is None:
        pytest.skip("no Python 3.10 on this machine")
    _python(_load(*WITHOUT_TORCH), "-S", executable=old)


def test_ops_need_torch_alone() -> None:
    kernels = {name for name in OPS if _imports_triton(modules()[name])}
    ops = [name for name in OPS if name not in kernels]
    _python(f"{_block('triton', *TOOL_ONLY)}; {_load(*ops)}")


def _python(code: str, *options: str, executable: str = sys.executable) -> str:
    code = f"import sys; sys.path.insert(0, {str(SRC)!r}); {code}"
    command = [executable, "-I", "-B", *options, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _block(*names: str) -> str:
    return f"sys.modules.update(dict.fromkeys({names!r}))"


def _load(*names: str) -> str:
    return f"import importlib; [importlib.import_module(name) for name in {names!r}]"


def _imports_triton(path: Path) -> bool:
    nodes = ast.parse(path.read_text()).body
    return any(
        isinstance(node, ast.Import | ast.ImportFrom) and "triton" in ast.unparse(node)
        for node in nodes
    )


def _find_python(version: str) -> str | None:
    """A Python that runs: pyenv's shims exist for versions that are not switched on."""
    installed = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")
    for found in (shutil.which(f"python{version}"), *map(str, installed)):
        if found and subprocess.run([found, "-V"], capture_output=True).returncode == 0:
            return found
    return None
