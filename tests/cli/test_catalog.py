"""`catalog` lists each entry with what it may change."""

import json
from pathlib import Path

import pytest

from aiak_tune.cli import catalog, main
from aiak_tune.optimizations.base import Scalar
from aiak_tune.optimizations.catalog import CATALOG


@pytest.mark.parametrize("columns", ["80", "120"])
def test_every_entry_is_a_row(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main.main(["catalog"]) == 0
    out = capsys.readouterr().out
    for entry in CATALOG:
        assert f" {entry.name} " in out
        assert entry.stage.value in out
    assert "num_workers: 1–64" in out
    assert max(len(line) for line in out.splitlines()) <= int(columns)
    assert "\x1b" not in out


def test_json_has_all_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["catalog", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["kind"]) == (1, "catalog")
    for told, entry in zip(document["optimizations"], CATALOG, strict=True):
        assert told == catalog.entry_document(entry)
        assert told["numerics"] and told["summary"]


def test_json_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["catalog", "--json", str(tmp_path / "c.json")]) == 0
    assert json.loads((tmp_path / "c.json").read_text())["kind"] == "catalog"
    assert "amp" in capsys.readouterr().out


def test_the_classes_are_those_of_all_values() -> None:
    found = {entry.name: [n.value for n in catalog.classes(entry)] for entry in CATALOG}
    assert found["amp"] == ["changing"]
    assert found["fused-optimizer"] == ["lossless"]


@pytest.mark.parametrize(
    ("values", "shown"),
    [((1, 2, 3, 4, 5), "1–5"), ((2, 4), "2, 4"), ((True, False), "true, false"),
     (("bfloat16",), "bfloat16"), ((1, 2, 4, 8), "1, 2, 4, 8"), ((), "")],
)  # fmt: skip
def test_values(values: tuple[Scalar, ...], shown: str) -> None:
    assert catalog.values_text(values) == shown
