"""`explain`: what is printed, and that the lines it prints put the plan's settings in force."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from contracts.example_tuning import ID, example_tuning
from PIL import Image
from tree import ROOT

from aiak_tune.api.store import open_store
from aiak_tune.cli import main
from aiak_tune.optimizations.base import Settings
from aiak_tune.selector.plan import dump_plan, plan_of
from aiak_tune.selector.results import Measured, TuningResult

EXAMPLE = ROOT / "examples" / "vision" / "train.py"
MADE = (
    "    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)\n"  # the last of the three
)
SETTINGS: Settings = {
    "fused-optimizer": {},
    "amp": {"dtype": "bfloat16"},
    "data-workers": {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True},
}
# What really happens, told by torch itself: operators called, dtypes seen, processes at work.
PROBE = """
    import atexit, json, os
    seen = {"fused": 0, "inside": set(), "loss": set()}
    fused, plain_loss, getitem = torch._fused_adamw_, F.cross_entropy, PictureDataset.__getitem__
    place = os.environ["PROBE"]

    def fused_adamw(*given, **named):
        seen["fused"] += 1
        return fused(*given, **named)

    def cross_entropy(scores, targets):
        seen["loss"].add(str(scores.dtype))
        return plain_loss(scores, targets)

    def made(self, index):
        with open(place, "a") as file:
            file.write(f"{os.getpid()}\\n")
        return getitem(self, index)

    torch._fused_adamw_, F.cross_entropy, PictureDataset.__getitem__ = (
        fused_adamw, cross_entropy, made
    )
    model.features.register_forward_hook(lambda m, a, out: seen["inside"].add(str(out.dtype)))
    atexit.register(lambda: print(json.dumps({k: v if k == "fused" else sorted(v)
                                              for k, v in seen.items()})))
"""


@pytest.fixture(autouse=True)
def nothing_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIAK_TUNE_STORE", f"sqlite:///{tmp_path / 'tunings.db'}")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


def tuning_with(settings: Settings, **changes: Any) -> TuningResult:
    """The example's tuning, won by these settings."""
    tuning = example_tuning(**changes)
    assert tuning.best is not None
    return replace(tuning, best=replace(tuning.best, settings=settings))


def explained(
    settings: Settings, capsys: pytest.CaptureFixture[str], *words: str, **changes: Any
) -> str:
    plan = plan_of(tuning_with(settings, **changes))
    assert plan is not None
    Path("plan.json").write_text(dump_plan(plan))
    assert main.main(["explain", "plan.json", *words]) == 0
    return capsys.readouterr().out


def block_after(title: str, printed: str) -> str:
    """The lines below a title, up to the next one."""
    _, found, rest = printed.partition(title)
    assert found, f"{title!r} is not in:\n{printed}"
    _, _, lines = rest.partition(":\n\n")
    for other in ("\nBy hand", "\nNot by hand"):
        lines = lines.partition(other)[0]
    return lines


def run_example(folder: Path, script: str, name: str, epochs: int) -> tuple[dict[str, Any], int]:
    """Run a changed example; return what its probe saw, and how many processes made samples."""
    place = folder / name
    place.write_text(script)
    done = subprocess.run(
        [sys.executable, str(place), "--data", str(folder / "data"), "--epochs", str(epochs)],
        env={**os.environ, "PROBE": str(folder / f"{name}.pids")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    pids = set((folder / f"{name}.pids").read_text().split())
    return json.loads(done.stdout.splitlines()[-1]), len(pids)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    noise = numpy.random.default_rng(0)
    for label in ("a", "b"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(34):
            pixels = noise.integers(0, 255, (70, 70, 3), dtype=numpy.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / label / f"{number:02}.jpg")
    return tmp_path


def test_the_printed_lines_put_the_settings_in_force(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = explained(SETTINGS, capsys)
    imports = block_after("By hand, at the top of the script", printed)
    lines = block_after("By hand, in the script", printed)
    example = EXAMPLE.read_text()
    assert example.count(MADE) == 1
    plain = example.replace(MADE, MADE + PROBE)
    inside = "".join(f"    {line}\n" if line else "\n" for line in lines.splitlines())
    edited = plain.replace("import torch\n", f"import torch\n{imports}", 1).replace(
        MADE, f"{MADE}    loader = train_loader\n{inside}"
    )
    as_written, _ = run_example(pictures, plain, "plain.py", 1)
    tuned, makers = run_example(pictures, edited, "edited.py", 2)
    assert as_written["fused"] == 0 and as_written["inside"] == ["torch.float32"]
    assert tuned["fused"] == 2 * 4  # two epochs of 64 pictures, 16 a batch
    assert tuned["inside"] == ["torch.bfloat16"]
    assert tuned["loss"] == ["torch.float32"]
    # Two workers, kept over both epochs, and the main process in the evaluations.
    assert makers == 3


def test_each_setting_has_its_reason_and_its_gain_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tuning = tuning_with({"data-workers": {"num_workers": 8}})
    trial = next(t for t in tuning.trials if isinstance(t, Measured) and t.settings)
    base = next(t for t in tuning.trials if not t.settings)
    assert isinstance(base, Measured)
    alone = replace(
        trial, settings={"data-workers": {"num_workers": 8}}, samples_per_s=2 * base.samples_per_s
    )
    with open_store() as store:
        store.save(replace(tuning, trials=(base, alone)))
    assert main.main(["explain", ID[:8]]) == 0
    out = capsys.readouterr().out
    assert "alone, in one trial: 2.00× as written" in out
    assert "why: " in out and "at most" in out
    assert "4.61× the speed of the job as written (95% interval 4.52–4.70), measured" in " ".join(
        out.split()
    )
    # A plan file has neither; the store here adds them.
    assert "alone, in one trial" in explained({"data-workers": {"num_workers": 8}}, capsys)


def test_settings_come_in_order_of_stage(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(explained(SETTINGS, capsys, "--json", "-"))
    assert [s["optimization"] for s in document["settings"]] == [
        "data-workers", "amp", "fused-optimizer",
    ]  # fmt: skip
    assert (document["kind"], document["speedup"], document["ci95"]) == (
        "explanation", 4.61, [4.52, 4.7],
    )  # fmt: skip
    assert "import" not in document["script"]["lines"].replace("imports", "")
    for setting in document["settings"]:
        assert setting["lines"] in document["script"]["lines"]
    assert document["shell"]["lines"] == ""
    assert document["not_by_hand"]


def test_a_plan_without_settings_is_said_to_have_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "no settings: the job runs as written" in explained({}, capsys)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("zzz", "there is no tuning 'zzz': `aiak-tune history` lists them"),
        ("last", "there is no tuning 'last': `aiak-tune tune"),
        ("none.json", "cannot read the plan none.json"),
        ("no/such", "cannot read the plan no/such"),
    ],
)
def test_what_is_not_there_is_named(
    name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["explain", name]) in (1, 2)
    assert said in capsys.readouterr().err


def test_a_tuning_without_a_plan_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    with open_store() as store:
        store.save(example_tuning(verdict="no_change", best=None))
    assert main.main(["explain", "last"]) == 2
    assert f"tuning {ID} has no plan, its verdict is no_change" in capsys.readouterr().err
