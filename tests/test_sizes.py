"""Modules and functions stay short enough to be read at one sitting."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tree import modules

MODULES = {name: path for name, path in modules().items() if ".migrations.versions." not in name}


def test_no_module_is_over_400_lines() -> None:
    sizes = {name: _lines(path) for name, path in MODULES.items()}
    assert {name: size for name, size in sizes.items() if size > 400} == {}


def test_nine_modules_in_ten_have_at_most_250_lines() -> None:
    # As in the measured repositories of STYLE.md, an `__init__` that says nothing is no module.
    sizes = {name: size for name, path in MODULES.items() if (size := _lines(path)) > 3}
    _assert_nine_in_ten(sizes, limit=250)


def test_nine_functions_in_ten_have_at_most_30_lines() -> None:
    sizes = {
        f"{name}:{function.lineno} {function.name}": _length(function)
        for name, path in MODULES.items()
        for function in _functions(path)
    }
    _assert_nine_in_ten(sizes, limit=30)


def _assert_nine_in_ten(sizes: dict[str, int], *, limit: int) -> None:
    long = {name: size for name, size in sizes.items() if size > limit}
    assert len(long) <= len(sizes) / 10, f"{len(long)} of {len(sizes)} over {limit}: {long}"


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not any("jit" in ast.unparse(decorator) for decorator in node.decorator_list):
                yield node  # a Triton kernel cannot be split


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the last one, the docstring left out."""
    length = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        docstring = function.body[0]
        length -= (docstring.end_lineno or 0) - docstring.lineno + 1
    return length
