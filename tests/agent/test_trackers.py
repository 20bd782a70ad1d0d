"""Trackers in a trial, in the shape those have: what the script asks for itself is overruled."""

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from slices import guesting

from aiak_tune.agent.footprints import read_footprints
from aiak_tune.agent.guest import GUEST
from aiak_tune.agent.protect import redirect_saves
from aiak_tune.agent.trackers import TRACKERS, quiet_environment
from aiak_tune.selector.side_effects import side_effects

FAKES = {
    "wandb/__init__.py": "from wandb.run import init",
    "wandb/run.py": "def init(project=None, mode=None, settings=None):\n    return mode",
    "swanlab.py": "def init(project=None, *, mode=None):\n    return mode",
    "mlflow/__init__.py": "def set_tracking_uri(uri):\n    return uri",
    "mlflow/tracking/__init__.py": "",
    "mlflow/tracking/client.py": """
class MlflowClient:
    def __init__(self, tracking_uri=None, registry_uri=None):
        self.uri = tracking_uri
""",
    "trackio.py": "def init(project, space_id=None):\n    return space_id",
    "neptune_scale/__init__.py": "",
    "neptune_scale/api/__init__.py": "",
    "neptune_scale/api/run.py": """
class Run:
    def __init__(self, *, mode=None):
        self.mode = mode
""",
    "clearml/__init__.py": "",
    "clearml/task.py": """
class Task:
    @classmethod
    def init(cls, name):
        return cls, name
""",
    # Laid out as nothing that is known: left alone.
    "comet_ml.py": "start = None\nclass Experiment: pass",
    "tensorboard/__init__.py": "",
    "tensorboard/summary/__init__.py": "",
    "tensorboard/summary/writer/__init__.py": "",
    "tensorboard/summary/writer/event_file_writer.py": """
import os
class EventFileWriter:
    def __init__(self, logdir, max_queue_size=10):
        os.makedirs(logdir, exist_ok=True)
        self.file = open(os.path.join(logdir, "events.out"), "wb")
""",
}


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The trackers on the path, none of them imported, and a trial armed in a user's folder."""
    for name, text in FAKES.items():
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    names = {name.partition("/")[0].removesuffix(".py") for name in FAKES}
    hidden = {n: m for n, m in sys.modules.items() if n.partition(".")[0] in names}
    for name in hidden:
        del sys.modules[name]
    for place in (tmp_path / "run", tmp_path / "theirs"):
        place.mkdir()
    (tmp_path / "run/spec.json").touch()
    monkeypatch.chdir(tmp_path / "theirs")
    with guesting(tmp_path / "run"):
        redirect_saves(torch, tmp_path / "run")
        yield tmp_path / "run"
    for name in [n for n in sys.modules if n.partition(".")[0] in names]:
        del sys.modules[name]
    sys.modules.update(hidden)


def test_a_mode_that_the_script_gives_is_overruled(run_dir: Path) -> None:
    wandb, swanlab = import_module("wandb"), import_module("swanlab")
    assert wandb.init("project", mode="online") == "disabled"
    assert wandb.init("project", "online") == "disabled"
    assert swanlab.init() == "disabled"
    assert import_module("neptune_scale.api.run").Run().mode == "disabled"
    assert import_module("trackio").init("project", "them/space") is None
    mlflow = import_module("mlflow")
    assert mlflow.set_tracking_uri("https://them") == f"file://{run_dir}/trackers/mlruns"
    client = import_module("mlflow.tracking.client").MlflowClient
    assert client("https://them").uri == client().uri == f"file://{run_dir}/trackers/mlruns"
    task = import_module("clearml.task").Task
    assert task.init("one") == (task, "one")
    names = ["wandb", "swanlab", "neptune_scale", "trackio", "mlflow", "clearml"]
    assert read_footprints(run_dir)["tracker"] == names


def test_who_is_imported_and_not_used_is_not_told_of(run_dir: Path) -> None:
    import_module("wandb")
    import_module("comet_ml")
    assert side_effects(run_dir) == []


def test_event_files_go_to_the_runs_folder_and_may_be_written_beside(run_dir: Path) -> None:
    writer = import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter
    with writer("runs/one").file as file:
        file.write(b"event")
    with open("runs/one/hparams.yaml", "w") as file:
        file.write("lr: 1")
    os.makedirs("runs/one/checkpoints")
    assert sorted(os.listdir("runs/one")) == ["checkpoints", "events.out", "hparams.yaml"]
    assert os.listdir(os.open(".", os.O_RDONLY)) == []
    GUEST.detach()
    (only,) = side_effects(run_dir)
    assert only.code == "trackers_off"
    assert only.text.endswith("tensorboard (its events go to the start's folder)")


def test_every_tracker_is_switched_off_whatever_the_user_has_set(tmp_path: Path) -> None:
    theirs = {"WANDB_MODE": "online", "MLFLOW_RUN_ID": "7", "HOME": "/theirs"}
    quiet = quiet_environment(theirs, tmp_path)
    assert quiet["WANDB_MODE"] == "disabled"
    assert quiet["MLFLOW_TRACKING_URI"] == f"file://{tmp_path}/trackers/mlruns"
    assert quiet["HOME"] == "/theirs" and "MLFLOW_RUN_ID" not in quiet
    assert all(tracker.variables or tracker.forced for tracker in TRACKERS)
