"""Checkpoints that other libraries write, sent to the run's folder in a trial.

Each entry names a module, an attribute of it, the argument that is a path, and what becomes of it.
A library that is laid out otherwise is left alone; what it then writes is told afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from aiak_tune.agent.hooks import patch
from aiak_tune.agent.imports import when_imported
from aiak_tune.agent.mirror import Mirror

LIGHTNING = ("lightning.fabric.plugins.io.torch_io", "lightning_fabric.plugins.io.torch_io")
# Classes with save_pretrained and from_pretrained, which write and read a folder.
PRETRAINED = {
    "transformers.modeling_utils": "PreTrainedModel",
    "transformers.configuration_utils": "PretrainedConfig PreTrainedConfig",
    "transformers.tokenization_utils_base": "PreTrainedTokenizerBase",
    "transformers.generation.configuration_utils": "GenerationConfig",
    "transformers.feature_extraction_utils": "FeatureExtractionMixin",
    "transformers.image_processing_base": "ImageProcessingMixin",
    "transformers.processing_utils": "ProcessorMixin",
    "peft.peft_model": "PeftModel",
    "diffusers.pipelines.pipeline_utils": "DiffusionPipeline",
    "diffusers.models.modeling_utils": "ModelMixin",
    "sentence_transformers.SentenceTransformer": "SentenceTransformer",
}


def redirect_libraries(mirror: Mirror) -> None:
    """Wait for each library, and turn its paths around."""
    folder = functools.partial(mirror.write, folder=True)
    when_imported("safetensors", lambda m: _safetensors(mirror, m))
    when_imported("torch.distributed.checkpoint.filesystem", lambda m: _dcp(mirror, folder, m))
    for name in LIGHTNING:
        when_imported(name, lambda m: _lightning(mirror, m))
    when_imported("accelerate.accelerator", lambda m: _accelerate(mirror, folder, m))
    when_imported("transformers.trainer", lambda m: _trainer(folder, m))
    for name, classes in PRETRAINED.items():
        when_imported(name, functools.partial(_pretrained, mirror, folder, classes.split()))


def turn(owner: Any, name: str, index: int, argument: str, place: Callable[[Any], Any]) -> None:
    """Let `place` decide over one argument of a function, given by position or by name."""
    if owner is None or name not in vars(owner):
        return
    plain = vars(owner)[name]
    bound = plain.__func__ if isinstance(plain, classmethod) else plain

    @functools.wraps(bound)
    def turned(*args: Any, **kwargs: Any) -> Any:
        if len(args) > index:
            args = (*args[:index], place(args[index]), *args[index + 1 :])
        elif kwargs.get(argument) is not None:
            kwargs[argument] = place(kwargs[argument])
        return bound(*args, **kwargs)

    patch(owner, name, classmethod(turned) if isinstance(plain, classmethod) else turned)


def _safetensors(mirror: Mirror, module: Any) -> None:
    """`safetensors.torch` takes both from the package, and is not imported yet."""
    turn(module, "serialize_file", 1, "filename", mirror.write)
    turn(module, "safe_open", 0, "filename", mirror.loaded)
    for name in ("torch", "numpy"):
        bound = vars(module).get(name)
        turn(bound, "serialize_file", 1, "filename", mirror.write)
        turn(bound, "safe_open", 0, "filename", mirror.loaded)


def _dcp(mirror: Mirror, folder: Callable[[Any], Any], module: Any) -> None:
    writer = getattr(module, "_FileSystemWriter", None)
    reader = getattr(module, "FileSystemReader", None)
    for cls, place in ((writer, folder), (reader, mirror.loaded)):
        turn(cls, "__init__", 1, "path", place)
        turn(cls, "reset", 1, "checkpoint_id", place)


def _lightning(mirror: Mirror, module: Any) -> None:
    cls = getattr(module, "TorchCheckpointIO", None)
    turn(cls, "save_checkpoint", 2, "path", mirror.write)
    turn(cls, "load_checkpoint", 1, "path", mirror.loaded)
    # Its place, whether it is there or not: an older one is the user's, and stays.
    turn(cls, "remove_checkpoint", 1, "path", mirror.place)


def _accelerate(mirror: Mirror, folder: Callable[[Any], Any], module: Any) -> None:
    cls = getattr(module, "Accelerator", None)
    turn(cls, "load_state", 1, "input_dir", mirror.loaded)
    turn(cls, "save_model", 2, "save_directory", folder)
    if cls is None or "save_state" not in vars(cls):
        return
    plain = cls.save_state

    @functools.wraps(plain)
    def save_state(self: Any, output_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
        project = getattr(self, "project_configuration", None)
        if not getattr(project, "automatic_checkpoint_naming", False):
            given = folder(output_dir) if output_dir is not None else None
            return plain(self, given, *args, **kwargs)
        # It names, counts and removes checkpoints in the project's folder.
        before = project.project_dir  # type: ignore[union-attr]
        project.project_dir = folder(before)  # type: ignore[union-attr]
        try:
            return plain(self, output_dir, *args, **kwargs)
        finally:
            project.project_dir = before  # type: ignore[union-attr]

    patch(cls, "save_state", save_state)


def _trainer(folder: Callable[[Any], Any], module: Any) -> None:
    """The folder that its checkpoints are made, counted and removed in."""
    cls = getattr(module, "Trainer", None)
    if cls is None:
        return
    plain_folder, plain_save = vars(cls).get("_get_output_dir"), vars(cls).get("save_model")
    if plain_folder is not None:

        @functools.wraps(plain_folder)
        def _get_output_dir(self: Any, *args: Any, **kwargs: Any) -> Any:
            return folder(plain_folder(self, *args, **kwargs))

        patch(cls, "_get_output_dir", _get_output_dir)
    if plain_save is not None:

        @functools.wraps(plain_save)
        def save_model(self: Any, output_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
            return plain_save(self, folder(output_dir or self.args.output_dir), *args, **kwargs)

        patch(cls, "save_model", save_model)
    for name in ("_push_from_checkpoint", "push_to_hub"):
        if name in vars(cls):
            patch(cls, name, lambda self, *args, **kwargs: None)


def _pretrained(
    mirror: Mirror, folder: Callable[[Any], Any], classes: list[str], module: Any
) -> None:
    done: set[Any] = set()
    for name in classes:
        cls = getattr(module, name, None)
        if cls is None or cls in done:
            continue
        done.add(cls)
        turn(cls, "save_pretrained", 1, "save_directory", folder)
        turn(cls, "from_pretrained", 1, "pretrained_model_name_or_path", mirror.read)
