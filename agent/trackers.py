"""Experiment trackers in a trial: switched off by their own switches, or sent to the run's folder.

A trial must not show as a run of the user's. The tool starts the job with each tracker's variables;
here is what variables cannot do: a mode that the script names itself, and a note of who was used.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiak_tune.agent.hooks import patch
from aiak_tune.agent.imports import when_imported
from aiak_tune.agent.libraries import turn
from aiak_tune.agent.mirror import Mirror

FOLDER = "trackers"  # below the run's folder, for those that can only be sent elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracker:
    """One tracker: its variables in a trial, and the calls that begin a run of it.

    `{folder}` in a value is a folder of the trial's. `calls` are "module:attribute"; `forced`
    are arguments that each of them gets, whatever the script gave.
    """

    name: str
    how: str
    calls: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    forced: Mapping[str, str | None] = field(default_factory=dict)


TRACKERS = (
    Tracker(
        name="wandb",
        how="WANDB_MODE=disabled",
        calls=("wandb:init",),
        variables={"WANDB_MODE": "disabled"},
        forced={"mode": "disabled"},
    ),
    Tracker(
        name="mlflow",
        how="MLFLOW_TRACKING_URI in the start's folder",
        calls=("mlflow:set_tracking_uri", "mlflow.tracking.client:MlflowClient.__init__"),
        # Since MLflow 3 a folder must be allowed; a database takes seconds to make.
        variables={"MLFLOW_TRACKING_URI": "file://{folder}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "1"},
        unset=("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"),  # the folder has none of these
        forced={"uri": "file://{folder}/mlruns", "tracking_uri": "file://{folder}/mlruns"},
    ),
    Tracker(
        name="comet",
        how="COMET_AUTO_LOG_DISABLE=1",
        calls=("comet_ml:start", "comet_ml:Experiment.__init__"),
        variables={
            "COMET_AUTO_LOG_DISABLE": "1",
            "COMET_MODE": "DISABLED",
            "COMET_OFFLINE_DIRECTORY": "{folder}",
        },
    ),
    Tracker(
        name="neptune",
        how="NEPTUNE_MODE=debug",
        calls=("neptune:init_run",),
        variables={"NEPTUNE_MODE": "debug"},
        forced={"mode": "debug"},
    ),
    Tracker(
        # The same variable has other values here.
        name="neptune_scale",
        how="mode=disabled",
        calls=("neptune_scale.api.run:Run.__init__",),
        forced={"mode": "disabled"},
    ),
    Tracker(
        name="clearml",
        how="CLEARML_OFFLINE_MODE=1",
        calls=("clearml.task:Task.init",),
        # Offline, a Trainer that sends its models to it fails.
        variables={"CLEARML_OFFLINE_MODE": "1", "CLEARML_LOG_MODEL": "FALSE"},
    ),
    Tracker(
        name="swanlab",
        how="SWANLAB_MODE=disabled",
        calls=("swanlab:init",),
        variables={"SWANLAB_MODE": "disabled"},
        forced={"mode": "disabled"},
    ),
    Tracker(
        name="trackio",
        how="TRACKIO_DIR in the start's folder",
        calls=("trackio:init",),
        variables={"TRACKIO_DIR": "{folder}/trackio"},
        unset=("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_BUCKET_ID"),
        forced={"space_id": None, "server_url": None, "bucket_id": None},
    ),
    Tracker(
        name="dvclive",
        how="DVCLIVE_TEST=1",
        calls=("dvclive.live:Live.__init__",),
        variables={"DVCLIVE_TEST": "1"},
    ),
)

# Those that write event files have no switch: they get another folder.
EVENT_WRITERS = {
    "tensorboard": "tensorboard.summary.writer.event_file_writer",
    "tensorboardX": "tensorboardX.event_file_writer",
}


def quiet_environment(environment: Mapping[str, str], run_dir: Path) -> dict[str, str]:
    """Return the variables of a trial: every tracker switched off, whatever the user has set."""
    unset = {name for tracker in TRACKERS for name in tracker.unset}
    quiet = {name: value for name, value in environment.items() if name not in unset}
    for tracker in TRACKERS:
        quiet.update(_filled(tracker.variables, run_dir))
    return quiet


def quiet_trackers(mirror: Mirror, run_dir: Path) -> None:
    """Hold the trackers to it, each once the job has imported it."""
    for tracker in TRACKERS:
        for call in tracker.calls:
            module, _, path = call.partition(":")
            told = functools.partial(_hold, mirror, tracker, run_dir, path)
            when_imported(module, told)
    for name, module in EVENT_WRITERS.items():
        when_imported(module, functools.partial(_redirect_events, mirror, name))


def _filled(values: Mapping[str, str], run_dir: Path) -> dict[str, str]:
    return {
        name: value.replace("{folder}", str(run_dir / FOLDER)) for name, value in values.items()
    }


def _hold(mirror: Mirror, tracker: Tracker, run_dir: Path, path: str, module: Any) -> None:
    holder, _, name = path.rpartition(".")
    owner = getattr(module, holder, None) if holder else module
    if owner is None or name not in vars(owner):
        return
    plain = vars(owner)[name]
    bound: Any = plain.__func__ if isinstance(plain, classmethod) else plain
    try:
        parameters = list(inspect.signature(bound).parameters)
    except (TypeError, ValueError):  # none of Python's functions
        return
    given = {n: v for n, v in tracker.forced.items() if n in parameters}
    forced = {n: v and v.replace("{folder}", str(run_dir / FOLDER)) for n, v in given.items()}

    @functools.wraps(bound)
    def held(*args: Any, **kwargs: Any) -> Any:
        mirror.footprints.note("tracker", tracker.name)
        for name, value in forced.items():
            index = parameters.index(name)
            if index < len(args):
                args = (*args[:index], value, *args[index + 1 :])
            else:
                kwargs[name] = value
        return bound(*args, **kwargs)

    patch(owner, name, classmethod(held) if isinstance(plain, classmethod) else held)


def _redirect_events(mirror: Mirror, tracker: str, module: Any) -> None:
    def place(folder: Any) -> Any:
        mirror.footprints.note("tracker", tracker)
        return mirror.write(folder, folder=True, told=False)

    turn(getattr(module, "EventFileWriter", None), "__init__", 1, "logdir", place)
