"""The built wheel, in an environment of its own."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from tree import LAYERS, PACKAGE, ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # From a copy: setuptools builds in place, and a stale `build` would hide what is missing.
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("src", *LAYERS):
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignore)
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, source)
    (built,) = out.iterdir()
    return built


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    roots = {PACKAGE: Path("aiak_tune")} | {ROOT / one: Path("aiak_tune", one) for one in LAYERS}
    files = {
        str(name / path.relative_to(root))
        for root, name in roots.items()
        for path in root.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert "aiak_tune/agent/bootstrap/sitecustomize.py" in files
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == files


def test_the_command_works_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    _pip("--python", python, "install", "--no-deps", "--no-index", wheel)
    # Our own dependencies, lent by path: so neither our `.pth` files nor the checkout come along.
    (lib,) = (tmp_path / "venv" / "lib").glob("python3.*")
    (lib / "site-packages" / "lent.pth").write_text(sysconfig.get_path("purelib"))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def output(*command: str | Path) -> str:
        return subprocess.run(
            command, cwd=tmp_path, env=env, check=True, capture_output=True, text=True
        ).stdout

    where = output(python, "-c", "import aiak_tune.cli; print(aiak_tune.cli.__file__)")
    assert Path(where).is_relative_to(tmp_path)
    assert "usage: aiak-tune" in output(python.with_name("aiak-tune"), "--help")


def _pip(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)
