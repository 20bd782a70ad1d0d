"""Checkpoints of other libraries, in the shape those have: small stand-ins for what they do."""

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from slices import guesting
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from aiak_tune.agent import imports
from aiak_tune.agent.footprints import Footprints, read_footprints
from aiak_tune.agent.mirror import Mirror
from aiak_tune.agent.protect import notice_resuming, redirect_saves

FAKES = {
    "safetensors/__init__.py": """
def serialize_file(tensors, filename, metadata=None):
    open(filename, "w").write(repr(tensors))
class safe_open:
    def __init__(self, filename, framework="pt"):
        self.text = open(filename).read()
""",
    "safetensors/torch.py": """
from safetensors import safe_open, serialize_file
def save_file(tensors, filename, metadata=None):
    serialize_file(tensors, filename, metadata=metadata)
def load_file(filename):
    return safe_open(filename, framework="pt").text
""",
    "transformers/__init__.py": "",
    "transformers/modeling_utils.py": """
import json, os
class PreTrainedModel:
    def save_pretrained(self, save_directory, **more):
        os.makedirs(save_directory, exist_ok=True)
        json.dump({"made": 2}, open(os.path.join(save_directory, "config.json"), "w"))
    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, **more):
        return json.load(open(os.path.join(pretrained_model_name_or_path, "config.json")))
""",
    "transformers/trainer.py": """
import os, shutil
class Trainer:
    def __init__(self, args):
        self.args = args
    def _get_output_dir(self, trial):
        return self.args.output_dir
    def save_model(self, output_dir=None, _internal_call=False):
        place = output_dir or self.args.output_dir
        os.makedirs(place, exist_ok=True)
        open(os.path.join(place, "trainer_state.json"), "w").write("new")
    def _save_checkpoint(self, model, trial):
        folder = self._get_output_dir(trial)
        for old in os.listdir(folder):
            if old.startswith("checkpoint-"):
                shutil.rmtree(os.path.join(folder, old))
        self.save_model(os.path.join(folder, "checkpoint-20"))
        self.push_to_hub()
    def push_to_hub(self):
        raise SystemExit("a trial was uploaded")
""",
    "lightning_fabric/__init__.py": "",
    "lightning_fabric/plugins/__init__.py": "",
    "lightning_fabric/plugins/io/__init__.py": "",
    "lightning_fabric/plugins/io/torch_io.py": """
import os
class TorchCheckpointIO:
    def save_checkpoint(self, checkpoint, path, storage_options=None):
        handle = os.open(path, os.O_CREAT | os.O_WRONLY)
        os.write(handle, checkpoint)
        os.close(handle)
    def load_checkpoint(self, path, map_location=None):
        return open(path, "rb").read()
    def remove_checkpoint(self, path):
        if os.path.exists(path):
            os.unlink(path)
""",
}


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder with old checkpoints, the libraries on the path, and a trial armed."""
    for name, text in FAKES.items():
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    names = {name.partition("/")[0] for name in FAKES}
    hidden = {n: m for n, m in sys.modules.items() if n.partition(".")[0] in names}
    for name in hidden:
        del sys.modules[name]
    folder = tmp_path / "run"
    for place in (folder, tmp_path / "theirs/checkpoint-10"):
        place.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "theirs")
    Path("checkpoint-10/trainer_state.json").write_text("old")
    Path("old.ckpt").write_bytes(b"old")
    Path("config.json").write_text(json.dumps({"made": 1}))
    (folder / "spec.json").touch()
    with guesting(folder):
        redirect_saves(torch, folder)
        yield folder
    for name in [n for n in sys.modules if n.partition(".")[0] in names]:
        del sys.modules[name]
    sys.modules.update(hidden)


def untouched() -> bool:
    """Whether the user's folder is as it was, by a look of the system's own."""
    names = sorted(os.listdir(os.open(".", os.O_RDONLY)))
    handle = os.open("checkpoint-10/trainer_state.json", os.O_RDONLY)
    old = os.read(handle, 10)
    os.close(handle)
    return names == ["checkpoint-10", "config.json", "old.ckpt"] and old == b"old"


def test_safetensors(run_dir: Path) -> None:
    library = import_module("safetensors.torch")
    save_file, load_file = library.save_file, library.load_file

    save_file({"a": 1}, "old.ckpt")
    save_file({"a": 2}, filename=Path("new.safetensors"))
    assert load_file("old.ckpt") == "{'a': 1}"
    assert load_file("new.safetensors") == "{'a': 2}"
    assert untouched()


def test_save_pretrained_reads_back_what_it_wrote(run_dir: Path) -> None:
    PreTrainedModel = import_module("transformers.modeling_utils").PreTrainedModel

    assert PreTrainedModel.from_pretrained(".") == {"made": 1}
    PreTrainedModel().save_pretrained(".")
    PreTrainedModel().save_pretrained(save_directory="new")
    assert PreTrainedModel.from_pretrained(".") == {"made": 2}
    assert PreTrainedModel.from_pretrained("new") == {"made": 2}
    assert untouched()


def test_a_trainer_neither_removes_nor_uploads(run_dir: Path) -> None:
    Trainer = import_module("transformers.trainer").Trainer

    trainer = Trainer(SimpleNamespace(output_dir="."))
    trainer._save_checkpoint(None, None)
    trainer.save_model()
    assert untouched()
    assert (run_dir / "saved" / str(Path.cwd())[1:] / "checkpoint-20/trainer_state.json").exists()


def test_lightning(run_dir: Path) -> None:
    io = import_module("lightning_fabric.plugins.io.torch_io").TorchCheckpointIO()
    io.save_checkpoint(b"new", "step=20.ckpt")
    assert io.load_checkpoint("step=20.ckpt") == b"new"
    io.remove_checkpoint("old.ckpt")
    io.remove_checkpoint("step=20.ckpt")
    assert untouched()


def test_torch_distributed_checkpoint(run_dir: Path) -> None:
    weights = {"w": torch.ones(3)}
    state_dict_saver.save(weights, checkpoint_id="dcp")
    back = {"w": torch.zeros(3)}
    state_dict_loader.load(back, checkpoint_id="dcp")
    assert torch.equal(back["w"], weights["w"])
    assert untouched()


def test_torch_jit(run_dir: Path) -> None:
    scripted = torch.jit.script(nn.Linear(2, 2))
    scripted.save("one.pt")
    torch.jit.save(scripted, "two.pt")
    assert torch.jit.load("one.pt").in_features == torch.jit.load("two.pt").in_features == 2
    assert untouched()


def test_a_module_whose_import_is_under_way_is_told_when_it_is_there(run_dir: Path) -> None:
    """A library imports torch in its midst: the agent arms when it is half there."""
    module = ModuleType("halfway")
    told: list[ModuleType] = []
    module.__spec__ = SimpleNamespace(_initializing=True)  # type: ignore[assignment]
    sys.modules["halfway"] = module
    try:
        imports.when_imported("halfway", told.append)
        imports.settle()
        assert told == []
        module.__spec__._initializing = False  # type: ignore[union-attr]
        imports.settle()
        imports.settle()
        assert told == [module]
    finally:
        del sys.modules["halfway"]


def test_a_module_that_another_finder_made_is_told_of_at_the_next_import(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trackers follow imports by finders of their own, which go before ours."""

    class Maker:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            found = PathFinder.find_spec(name, path, target)
            if found is not None and found.origin is not None:
                return spec_from_loader(name, SourceFileLoader(name, found.origin))
            return None

    for name in ("made_by_it", "next_one"):
        (tmp_path / f"lib/{name}.py").touch()
    told: list[str] = []

    def tell(asker: str, module: ModuleType) -> None:
        told.append(asker)

    for asker in ("first", "second"):
        imports.when_imported("made_by_it", partial(tell, asker))
    monkeypatch.setattr(sys, "meta_path", [Maker(), *sys.meta_path])
    import_module("made_by_it")
    monkeypatch.undo()
    assert told == []
    with pytest.raises(ImportError):
        import_module("no_such_module")
    assert told == ["first", "second"]


@pytest.mark.parametrize("late", [False, True])
def test_a_job_that_goes_on_from_a_checkpoint_is_noticed(late: bool, run_dir: Path) -> None:
    mirror = Mirror(run_dir, Footprints(run_dir))
    notice_resuming(torch, mirror, lambda: late)
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight])
    fresh = optimizer.state_dict()
    optimizer.load_state_dict(fresh)
    assert "resumed" not in read_footprints(run_dir), "nothing was in it"
    weight.sum().backward()
    optimizer.step()
    mirror.loaded("old.ckpt")
    optimizer.load_state_dict(optimizer.state_dict())
    expected = None if late else [str(Path("old.ckpt").absolute())]
    assert read_footprints(run_dir).get("resumed") == expected
