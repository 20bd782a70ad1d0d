"""What a wheel would leave out in silence: the checkout still works through its links."""

import ast
import os
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from tree import LAYERS, PACKAGE, ROOT, dotted, modules, on_job_side, project

SETUPTOOLS = project()["tool"]["setuptools"]
FOLDERS = sorted({path.parent for path in modules().values()})


def test_every_folder_with_python_is_a_listed_package() -> None:
    found = sorted(dotted(folder) for folder in FOLDERS if folder != PACKAGE)
    assert SETUPTOOLS["packages"] == ["aiak_tune", *found]


@pytest.mark.parametrize("folder", FOLDERS, ids=dotted)
def test_every_package_has_an_init(folder: Path) -> None:
    assert (folder / "__init__.py").is_file()


def test_every_layer_is_mapped_to_its_folder() -> None:
    layers = {f"aiak_tune.{layer}": layer for layer in LAYERS}
    assert SETUPTOOLS["package-dir"] == {"aiak_tune": "src/aiak_tune", **layers}


def test_each_link_leads_to_its_layer() -> None:
    links = {path.name: os.readlink(path) for path in PACKAGE.iterdir() if path.is_symlink()}
    assert links == {layer: f"../../{layer}" for layer in LAYERS}
    assert all((PACKAGE / layer).resolve() == ROOT / layer for layer in LAYERS)


def test_every_other_file_is_package_data() -> None:
    listed = {
        path
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for path in _folder(package).glob(pattern)
    }
    roots = [PACKAGE, *(ROOT / layer for layer in LAYERS)]
    found = {path for root in roots for path in root.rglob("*") if path.is_file()}
    assert {path for path in found if path.suffix not in {".py", ".pyc"}} == listed


def test_what_the_tool_imports_is_declared() -> None:
    declared = project()["project"]["dependencies"]
    for extra in ("service", "tensorboard"):
        declared = declared + project()["project"]["optional-dependencies"][extra]
    names = {re.split(r"[<>=\[]", requirement)[0] for requirement in declared}
    tool = {name: path for name, path in modules().items() if not on_job_side(name)}
    undeclared = {
        f"{name} imports {package}"
        for name, path in tool.items()
        for package in _imported(path) - sys.stdlib_module_names - {"aiak_tune"}
        if not names & _distributions(package)
    }
    assert not undeclared


def _folder(package: str) -> Path:
    return PACKAGE.joinpath(*package.split(".")[1:]).resolve()


def _imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def _distributions(package: str) -> set[str]:
    names = packages_distributions().get(package, [package])
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names}
