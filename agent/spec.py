"""The run specification: what the tool tells the agent, as one JSON file in the run's folder.

The job finds it through the environment variable AIAK_TUNE_SPEC. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from aiak_tune.optimizations.base import Settings

SPEC_VARIABLE = "AIAK_TUNE_SPEC"
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePlan:
    """How long the slice is, in steps.

    `parity`: first steps whose samples are seeded one by one, so that losses of two runs compare
    whatever the number of workers; they are part of the warm-up. `warmup` steps are never counted,
    `steps` are clean and counted, `profiled` ones run under the profiler, `probe` asks for the
    in-process comparison with the plain computation at the end. `seed` None leaves seeds alone.
    `disturb` moves each trainable weight by one unit in the last place of that relative size
    before the first step (0: not at all).
    """

    parity: int = 12
    warmup: int = 12
    steps: int = 20
    profiled: int = 4
    min_window_s: float = 2.0
    max_window_s: float = 20.0
    probe: bool = False
    seed: int | None = 0
    disturb: float = 0.0
    disturb_seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One start of the job. `versions`: torch and cuda that a plan was made with, "" unchecked.

    `ranks`: how many a plan was made for, 0 unchecked.

    `slice` None: the whole job runs (`aiak-tune run`).

    `supervised`: somebody ends the whole process tree as soon as the slice is over.
    """

    run_dir: str
    settings: Settings = field(default_factory=dict)
    slice: SlicePlan | None = None
    model_fingerprint: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    supervised: bool = False
    schema: int = SCHEMA

    def dump(self) -> str:
        """Return the JSON text that `load` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> RunSpec:
        """Read `dump`'s text; raises ValueError on another schema."""
        data = json.loads(text)
        if data.get("schema") != SCHEMA:
            raise ValueError(f"run specification of schema {data.get('schema')!r}, not {SCHEMA}")
        plan = data.pop("slice")
        return cls(**data, slice=None if plan is None else SlicePlan(**plan))
