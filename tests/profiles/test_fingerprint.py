"""Which jobs are the same, and which are not."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiak_tune.profiles.fingerprint import job_fingerprint, model_fingerprint


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return _project(tmp_path / "project")


def _project(folder: Path) -> Path:
    (folder / "pkg" / "app").mkdir(parents=True)
    (folder / "train.py").write_text("print('train')\n")
    (folder / "pkg" / "train.py").write_text("print('pkg')\n")
    (folder / "pkg" / "app" / "__main__.py").write_text("print('app')\n")
    return folder


def test_it_is_marked_and_stable(project: Path) -> None:
    first = job_fingerprint(["python", "train.py"], project)
    assert first.startswith("job1:")
    assert len(first) == len("job1:") + 32
    assert int(first.removeprefix("job1:"), 16)
    assert job_fingerprint(["python", "train.py"], project) == first


def test_its_value_is_pinned(tmp_path: Path) -> None:
    # Another value would part every stored tuning from its job: a new prefix is due then.
    (tmp_path / "train.py").write_bytes(b"pass\n")
    got = job_fingerprint(["python", "train.py", "--lr", "0.1"], tmp_path)
    assert got == "job1:e4e7ad14b6955d65d9ddcad26d1f08dc"


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "train.py", "--data", "exp/a.yaml"],
        ["/opt/env/bin/python3.12", "train.py", "--data", "exp/a.yaml"],
        [".venv/bin/python", "./train.py", "--data", "./exp/a.yaml"],
        ["./train.py", "--data", "exp/a.yaml"],
        ["python", "{project}/train.py", "--data", "{project}/exp/a.yaml"],
    ],
    ids=" ".join,
)
def test_the_interpreter_and_the_folder_do_not_change_it(
    command: Sequence[str], project: Path
) -> None:
    plain = job_fingerprint(["python", "train.py", "--data", "exp/a.yaml"], project)
    assert job_fingerprint([word.format(project=project) for word in command], project) == plain


def test_starting_from_another_folder_does_not_change_it(project: Path) -> None:
    plain = job_fingerprint(["python", "train.py", "--config=exp/a.yaml"], project)
    above = ["python", "project/train.py", "--config=project/exp/a.yaml"]
    assert job_fingerprint(above, project.parent) == plain
    below = ["python", "../train.py", "--config=../exp/a.yaml"]
    assert job_fingerprint(below, project / "pkg") == plain


def test_a_copy_elsewhere_is_the_same_job(project: Path, tmp_path: Path) -> None:
    command = ["torchrun", "--nproc-per-node", "8", "train.py", "--data", "/mnt/a/imagenet"]
    other = _project(tmp_path / "home" / "copy")
    moved = [*command[:-1], "/scratch/imagenet"]
    assert job_fingerprint(moved, other) == job_fingerprint(command, project)


@pytest.mark.parametrize(
    "other",
    [
        ["python", "train.py", "--lr", "0.2"],
        ["python", "train.py", "0.1", "--lr"],
        ["python", "train.py", "--lr 0.1"],
        ["python", "train.py"],
        ["python", "pkg/train.py", "--lr", "0.1"],
        ["torchrun", "train.py", "--lr", "0.1"],
    ],
    ids=" ".join,
)
def test_arguments_their_order_and_the_program_change_it(other: list[str], project: Path) -> None:
    plain = job_fingerprint(["python", "train.py", "--lr", "0.1"], project)
    assert job_fingerprint(other, project) != plain


def test_two_configurations_in_the_project_are_two_jobs(project: Path) -> None:
    one, two = (["python", "train.py", "--config", f"exp{n}/train.yaml"] for n in (1, 2))
    assert job_fingerprint(one, project) != job_fingerprint(two, project)


def test_a_models_name_is_no_path(project: Path) -> None:
    one, two = (["python", "train.py", "--model", f"{who}/opt-125m"] for who in ("a", "b"))
    assert job_fingerprint(one, project.parent) != job_fingerprint(two, project.parent)


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (["python", "train.py"], "train.py"),
        (["python", "-m", "pkg.train"], "pkg/train.py"),
        (["python", "-m", "pkg.app"], "pkg/app/__main__.py"),
        (["torchrun", "-m", "pkg.train"], "pkg/train.py"),
        (["python", "-m", "torch.distributed.run", "train.py"], "train.py"),
        (["accelerate", "launch", "--module", "pkg.train"], "pkg/train.py"),
    ],
    ids=str,
)
def test_the_scripts_bytes_change_it(command: list[str], script: str, project: Path) -> None:
    before = job_fingerprint(command, project)
    (project / script).write_text("print('edited')\n")
    assert job_fingerprint(command, project) != before


def test_a_module_that_the_script_imports_does_not_change_it(project: Path) -> None:
    before = job_fingerprint(["python", "train.py"], project)
    (project / "pkg" / "train.py").write_text("print('edited')\n")
    assert job_fingerprint(["python", "train.py"], project) == before


@pytest.mark.parametrize(
    "command",
    [[], [""], ["yolo", "train"], ["python", "gone.py"], ["python", "-m"], ["-m", "a..b"],
     ["python", "-c", "print(1)"], ["\0.py"], ["a" * 5000 + ".py"], ["/"], ["--x=/"]],
    ids=lambda c: str(c)[:20],
)  # fmt: skip
def test_a_command_without_a_script_has_one_too(command: list[str], project: Path) -> None:
    assert job_fingerprint(command, project).startswith("job1:")


def test_a_name_that_is_no_utf8_has_one_too(project: Path) -> None:
    name = os.fsdecode(b"\xff.py")
    assert job_fingerprint(["python", name], project) != job_fingerprint(["python"], project)


TREE = [("", "Net", ()), ("fc", "Linear", ()), ("fc.weight", "Parameter", (4, 3))]


def test_the_model_fingerprint_is_pinned() -> None:
    assert (
        model_fingerprint(TREE, "AdamW", [(8, 3), (8,)])
        == "model1:4c80d0801b917873b9a77249f918ddf3"
    )
    assert (
        model_fingerprint(iter(TREE), "AdamW", [[8, 3], [8]])
        == "model1:4c80d0801b917873b9a77249f918ddf3"
    )


@pytest.mark.parametrize(
    ("tree", "optimizer", "shapes"),
    [
        (TREE[:2], "AdamW", [(8, 3), (8,)]),
        ([*TREE[:2], ("fc.weight", "Parameter", (3, 4))], "AdamW", [(8, 3), (8,)]),
        ([TREE[0], ("fc", "LazyLinear", ()), TREE[2]], "AdamW", [(8, 3), (8,)]),
        ([TREE[0], ("head", "Linear", ()), TREE[2]], "AdamW", [(8, 3), (8,)]),
        (TREE, "SGD", [(8, 3), (8,)]),
        (TREE, "AdamW", [(16, 3), (16,)]),
        (TREE, "AdamW", [(8, 3)]),
    ],
    ids=["fewer", "shape", "class", "name", "optimizer", "batch", "batch parts"],
)
def test_what_is_trained_changes_the_model_fingerprint(
    tree: list[tuple[str, str, tuple[int, ...]]], optimizer: str, shapes: list[tuple[int, ...]]
) -> None:
    changed = model_fingerprint(tree, optimizer, shapes)
    assert changed != model_fingerprint(TREE, "AdamW", [(8, 3), (8,)])


WORDS = st.lists(st.text(st.characters(exclude_characters="/"), max_size=8), max_size=5)


@given(one=WORDS, two=WORDS)
def test_two_different_commands_differ(one: list[str], two: list[str]) -> None:
    nowhere = Path("/nonexistent")
    same = job_fingerprint(["x", *one], nowhere) == job_fingerprint(["x", *two], nowhere)
    assert same == (one == two)
