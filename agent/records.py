"""What the agent leaves in the run's folder, and how the tool reads it. Standard library only.

Files: `births` (a line a Python process), `torch` (a line each that imported it), `seen` (a word
for each kind of event that came before the first step), `fault-PID.txt`, `failed-RANK.json` (an
exception ended that rank), `progress-RANK.jsonl`, `result-RANK.json` (one SliceRecord),
`trace-RANK.json` (the profiled steps), `applied-RANK.json` (under `run`). A result is written
beside its place and renamed, so it is whole or absent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
BIRTHS = "births"
TORCH_BIRTHS = "torch"  # a line for each process that imported torch
SEEN = "seen"
# batch: a DataLoader gave one with gradients on; forward: a module ran; backward; gradient:
# torch.autograd.grad was asked; optimizer: one was made; marks: the job's code calls step_done.
SIGHTS = ("batch", "forward", "backward", "gradient", "optimizer", "marks")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRecord:
    """The counted window: clean steps between two device synchronisations, nanoseconds.

    `steps` are rows [step_ns, fetch_ns, batches, micro_batches, samples or null], evaluation left
    out; `wall_ns` is theirs alone. `mixed` steps were left out, of which `doubtful` may have held
    a rollout; `left_out` are the places of all that were, among the counted. `rollouts`: updates
    from one rollout to the next, 0 where none were seen.
    """

    wall_ns: int
    steps: list[list[int | None]]
    mixed: int
    updates_skipped: int = 0
    rollouts: int = 0
    doubtful: int = 0
    left_out: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecord:
    """The comparison with the plain computation on one real batch (DESIGN.md section 5 a).

    Errors are relative to the reference's norm; `yard_*` are those of the plain computation in
    the numerics class's precision. None: could not be had, and `problem` says why.
    """

    what: str
    error: float | None
    yard: float | None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRecord:
    """All one rank measured in its slice.

    `status`: complete; short (the job ended before its slice did); irregular (its optimizers take
    no regular turns). `here`: how many ranks write into this run's folder.
    """

    rank: int
    world_size: int
    pid: int
    status: str
    facts: Mapping[str, Any]
    environment: Mapping[str, Any]
    warmup_steps: int
    window: WindowRecord | None = None
    trace: str | None = None
    profiled: list[int] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    late_losses: list[float | None] = field(default_factory=list)
    batch_hashes: list[str] = field(default_factory=list)
    moved: bool | None = None
    effects: Mapping[str, str | None] = field(default_factory=dict)
    probes: list[ProbeRecord] = field(default_factory=list)
    memory_bytes: int | None = None
    startup_s: float | None = None
    here: int = 1
    nodes: int = 1
    warnings: list[list[str]] = field(default_factory=list)
    schema: int = SCHEMA


def write_result(run_dir: Path, record: SliceRecord) -> None:
    """Write the record whole: into a file beside its place, then renamed."""
    place = run_dir / f"result-{record.rank}.json"
    beside = place.with_suffix(f".{os.getpid()}.tmp")
    beside.write_text(json.dumps(asdict(record)))
    beside.replace(place)


def read_results(run_dir: Path) -> list[SliceRecord]:
    """Return the results of all ranks that finished, by rank.

    Raises:
        ValueError: a result of another schema, or damaged.
    """
    records = [_load(path.read_text()) for path in run_dir.glob("result-*.json")]
    return sorted(records, key=lambda r: r.rank)


def _load(text: str) -> SliceRecord:
    data = json.loads(text)
    if data.get("schema") != SCHEMA:
        raise ValueError(f"result of schema {data.get('schema')!r}, not {SCHEMA}")
    window = data.pop("window")
    probes = [ProbeRecord(**p) for p in data.pop("probes")]
    return SliceRecord(
        **data, window=None if window is None else WindowRecord(**window), probes=probes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRank:
    """A rank of several that died of an exception: what it says, and its traceback in `text`."""

    rank: int
    at_ns: int
    error: str
    text: str


def write_failed(run_dir: Path, failed: FailedRank) -> None:
    """Write it whole, as a result."""
    place = run_dir / f"failed-{failed.rank}.json"
    beside = place.with_suffix(f".{os.getpid()}.tmp")
    beside.write_text(json.dumps(asdict(failed)))
    beside.replace(place)


def read_failed(run_dir: Path) -> list[FailedRank]:
    """Return the ranks that died of an exception; what cannot be read is left out."""
    found = []
    for place in run_dir.glob("failed-*.json"):
        try:
            found.append(FailedRank(**json.loads(place.read_text())))
        except (OSError, ValueError, TypeError):
            continue
    return found


def note_seen(run_dir: Path, what: str) -> None:
    """Add a word of SIGHTS: this process saw such an event."""
    with open(run_dir / SEEN, "a") as file:
        file.write(f"{what}\n")


def read_seen(run_dir: Path) -> frozenset[str]:
    """Return the kinds of events that any process saw."""
    try:
        words = (run_dir / SEEN).read_text(errors="replace").split()
    except OSError:
        return frozenset()
    return frozenset(words) & frozenset(SIGHTS)


@dataclass(frozen=True, slots=True)
class Birth:
    """One Python process that loaded the bootstrap."""

    pid: int
    parent: int
    python: str
    argv: str


def read_torch_births(run_dir: Path) -> int:
    """Return how many processes imported torch."""
    path = run_dir / TORCH_BIRTHS
    return len(path.read_text().split()) if path.exists() else 0


def read_births(run_dir: Path) -> list[Birth]:
    """Return the processes that loaded the bootstrap, in order."""
    path = run_dir / BIRTHS
    if not path.exists():
        return []
    rows = [line.split(" ", 3) for line in path.read_text(errors="replace").splitlines()]
    return [Birth(int(r[0]), int(r[1]), r[2], r[3]) for r in rows if len(r) == 4]
