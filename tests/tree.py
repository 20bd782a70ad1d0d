"""The source tree, as the tests about it see it."""

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "aiak_tune"
LAYERS = ("agent", "api", "cli", "ops", "optimizations", "profiles", "selector")

# First words of the modules of `profiles` that only the tool loads; the Makefile has them too.
TOOL_PROFILES = {"attribution", "documents", "intervals", "timeline", "trace"}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, in order."""
    paths = list(PACKAGE.glob("*.py"))
    for layer in LAYERS:
        paths += (ROOT / layer).rglob("*.py")
    return {dotted(path): path for path in sorted(paths)}


def dotted(path: Path) -> str:
    """The name under which a file or folder of the package is imported."""
    base = PACKAGE if path.is_relative_to(PACKAGE) else ROOT
    parts = path.relative_to(base).parts
    return ".".join(("aiak_tune", *parts)).removesuffix(".py").removesuffix(".__init__")


def on_job_side(name: str) -> bool:
    """Whether a module may run inside the job: Python 3.10, standard library and torch."""
    layer, _, rest = name.removeprefix("aiak_tune").lstrip(".").partition(".")
    if layer == "profiles":
        return rest.partition("_")[0] not in TOOL_PROFILES
    return layer in {"", "agent", "errors", "ops", "optimizations"}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())
