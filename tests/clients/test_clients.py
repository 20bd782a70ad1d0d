"""Training frameworks nobody here wrote, unmodified: profiled, tuned and run under a plan.

`make test-clients` makes the environment that they live in. What the tool counts is held against
what a client tells of itself (told.py), and behind each there is nothing left of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from running import processes_with
from tree import ROOT

pytestmark = pytest.mark.clients

BIN = ROOT / ".venv-clients" / "bin"
HERE = Path(__file__).parent
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "YOLO_OFFLINE": "true",
}
WARMUP, COUNTED, PROFILED = 12, 20, 4
LONG = 5000  # steps: no slice gets there
WHOLE = 40  # steps of a whole job under a plan
WORKERS = {
    "num_workers": 1, "prefetch_factor": 2, "pin_memory": False, "persistent_workers": False,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Client:
    """One framework's job.

    `samples` are those of an update; `evaluates` that it does in between; `settings` what a plan
    brings to it; `console` that it is a command of the framework's own, which tells nothing.
    """

    samples: float | None
    settings: dict[str, dict[str, Any]]
    evaluates: bool = False
    console: tuple[str, ...] = field(default=())
    model: str

    def command(self, name: str, made: Path, out: Path, steps: int) -> list[str]:
        """Return the training command."""
        if not self.console:
            return [str(BIN / "python"), str(HERE / f"{name}.py"), str(out), str(steps)]
        words = {"made": made, "out": out, "steps": steps, "epochs": steps // 40}
        program, *rest = (word.format(**words) for word in self.console)
        return [str(BIN / program), *rest]


CLIENTS = {
    "hf_trainer": Client(
        samples=8, evaluates=True, model="GPT2LMHeadModel", settings={"data-workers": WORKERS}
    ),
    "lightning_fit": Client(
        samples=6, evaluates=True, model="Sequential",
        settings={"data-workers": WORKERS, "fused-optimizer": {}},
    ),
    "accelerated": Client(samples=8, model="Sequential", settings={"data-workers": WORKERS}),
    "graph": Client(samples=None, model="Net", settings={"fused-optimizer": {}}),
    "monai_segmentation": Client(
        samples=4, model="UNet", settings={"channels-last": {"format": "channels_last"}}
    ),
    "ignite_engine": Client(
        samples=5, evaluates=True, model="Sequential", settings={"data-workers": WORKERS}
    ),
    "trl": Client(
        samples=8, model="LlamaForCausalLM", settings={"data-workers": WORKERS},
        console=(
            "trl", "sft", "--model_name_or_path", "{made}/model", "--dataset_name", "{made}/data",
            "--output_dir", "{out}/sft", "--max_steps", "{steps}",
            "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2",
            "--report_to", "none", "--use_cpu", "--bf16", "False", "--max_length", "32",
        ),
    ),
    "yolo": Client(
        samples=4, model="DetectionModel",
        settings={"channels-last": {"format": "channels_last"}, "fused-optimizer": {}},
        console=(
            "yolo", "detect", "train", "model=yolo11n.yaml", "data={made}/boxes.yaml",
            "epochs={epochs}", "imgsz=64", "batch=4", "nbs=4", "device=cpu", "workers=0",
            "pretrained=False", "plots=False", "amp=False", "project={out}",
        ),
    ),
}  # fmt: skip


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the console scripts train on."""
    if not (BIN / ".ready").exists():
        pytest.skip("the clients' environment is not there: run `make test-clients`")
    folder = tmp_path_factory.mktemp("made")
    for script in ("make_sft.py", "make_boxes.py"):
        subprocess.run(
            [BIN / "python", HERE / script, folder],
            check=True, capture_output=True, env={**os.environ, **OFFLINE},
        )  # fmt: skip
    return folder


class Desk:
    """Where one client is worked on: its folder, its commands, what they left."""

    def __init__(self, name: str, made: Path, folder: Path) -> None:
        self.name, self.client, self.made, self.folder = name, CLIENTS[name], made, folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.environment = {
            **os.environ,
            **OFFLINE,
            "AIAK_TUNE_STORE": f"sqlite:///{folder / 'tunings.db'}",
            "TMPDIR": str(self.temporary),
            "XDG_DATA_HOME": str(folder / "data"),
            "YOLO_CONFIG_DIR": str(folder),
        }

    def tool(self, *words: str, steps: int = LONG) -> dict[str, Any]:
        """Run a verb on the client's job and return its document."""
        told = self.folder / "told.jsonl"
        told.unlink(missing_ok=True)
        command = self.client.command(self.name, self.made, self.folder, steps)
        place = self.folder / f"{words[0]}.json"
        done = subprocess.run(
            [sys.executable, "-m", "aiak_tune", *words, "--json", str(place), "--", *command],
            env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=1200,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        document: dict[str, Any] = json.loads(place.read_text())
        return document

    def told(self, event: str) -> list[dict[str, Any]]:
        """What the job said of itself."""
        lines = (self.folder / "told.jsonl").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


@pytest.fixture(params=CLIENTS)
def desk(request: pytest.FixtureRequest, made: Path, tmp_path: Path) -> Iterator[Desk]:
    """A client's desk; behind it no process (so no port), segment or run folder may be left."""
    segments = shared_memory()
    desk = Desk(request.param, made, tmp_path)
    yield desk
    assert processes_with(str(tmp_path)) == []
    assert shared_memory() <= segments
    assert [p.name for p in tmp_path.rglob("aiak-run-*")] == []


def left_out(profile: dict[str, Any]) -> int:
    """How many steps the profile says that it left out for an evaluation."""
    texts = [w["text"] for w in profile["warnings"] if w["code"] == "evaluation_left_out"]
    return int(texts[0].split()[0]) if texts else 0


def test_profile_counts_as_the_client_does(desk: Desk) -> None:
    client = desk.client
    profile = desk.tool("profile", "--steps", str(COUNTED), "--warmup", str(WARMUP))
    steps, job = profile["steps"], profile["job"]
    assert job["model"]["class"] == client.model
    assert abs(sum(profile["breakdown_ms"].values()) - steps["step_ms"]["mean"]) < 1e-6
    if client.samples is not None:
        assert steps["samples_per_step"] == client.samples
    else:
        assert job["loader"] is None and "no_loader" in {w["code"] for w in profile["warnings"]}
    if client.console:
        return
    told = desk.told("step")
    assert {step.get("samples") for step in told} == {client.samples}
    seen = steps["warmup"] + steps["counted"] + left_out(profile) + steps["profiled"]
    # The job is ended behind its last update, before or after it tells of it.
    assert len(told) in (seen - 1, seen)
    first = steps["warmup"]
    evaluated = [e for e in desk.told("evaluation") if first <= e["step"] < seen - PROFILED]
    assert bool(evaluated) == client.evaluates and left_out(profile) == len(evaluated)


def test_tune_ends_with_a_true_verdict(desk: Desk) -> None:
    place = desk.folder / "plan.json"
    # Compiling takes minutes on two cores where the model is a real one.
    left = ("--exclude", "compile") if desk.client.console else ()
    tuning = desk.tool("tune", "--trials", "2", "--plan", str(place), *left)
    assert tuning["verdict"] in ("faster", "no_change")
    tried = [trial for trial in tuning["trials"] if trial["settings"]]
    assert tried and all(trial["reason"] for trial in tried if trial["state"] != "measured")
    if tuning["verdict"] == "no_change":
        assert not place.exists()
        return
    assert json.loads(place.read_text())["settings"] == tuning["best"]["settings"]
    assert tuning["best"]["ci95"][0] > 1.0


def test_a_whole_job_under_a_plan(desk: Desk) -> None:
    profile = desk.tool("profile", "--steps", "5", "--warmup", str(WARMUP))
    plan = {
        "schema": 1,
        "kind": "plan",
        "tuning_id": "01JE5Q3X7N0000000000000001",
        "job": {key: profile["job"][key] for key in ("fingerprint", "model_fingerprint", "name")},
        "environment": profile["environment"],
        "settings": desk.client.settings,
        "speedup": None,
        "ci95": None,
        "numerics": "changing",
        "evidence": "predicted",
    }
    place = desk.folder / "plan.json"
    place.write_text(json.dumps(plan))
    ran = desk.tool("run", "--plan", str(place), steps=WHOLE)
    assert ran["exit_code"] == 0 and set(ran["effects"]) == set(desk.client.settings)
    assert all(ran["effects"].values()), ran
    if desk.client.console:
        assert ran["updates"] >= 20
        return
    assert len(desk.told("step")) == WHOLE and desk.told("end")[-1]["step"] == WHOLE
