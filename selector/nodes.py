"""Which node of a job of several this one is, and whether two commands are those of one job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiak_tune.errors import UsageError

# torchrun's and accelerate's own words for them; either spelling, with = or a space.
COUNT = ("--nnodes", "--num_machines", "--num-machines")
INDEX = ("--node_rank", "--node-rank", "--machine_rank", "--machine-rank")
COUNT_VARIABLES = ("PET_NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
INDEX_VARIABLES = ("PET_NODE_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_NODEID")
# What may differ from node to node in one job's command.
OWN = (*INDEX, "--local-addr", "--local_addr", "--rdzv-conf", "--rdzv_conf", "--log-dir")
PORT = 29399


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the tools of a job's nodes meet: node 0 listens there, and decides."""

    host: str
    port: int
    nodes: int
    node: int
    wait_s: float = 600.0

    @property
    def place(self) -> str:
        """`host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def rendezvous_of(
    place: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    nodes: int | None = None,
    node: int | None = None,
    wait_s: float = 600.0,
) -> Rendezvous:
    """Return where to meet as whom: as asked for, else as the command or its launcher says.

    Raises:
        UsageError: the place is none, or which node this is cannot be told.
    """
    host, port = _place(place)
    count = nodes if nodes is not None else _number(command, COUNT, environment, COUNT_VARIABLES)
    index = node if node is not None else _number(command, INDEX, environment, INDEX_VARIABLES)
    if count is None:
        raise UsageError(f"--rendezvous {place}: on how many nodes does the job run? --nnodes N")
    if index is None:
        raise UsageError(
            f"--rendezvous {place}: which of the {count} nodes is this one? --node-rank N, from 0"
        )
    if count < 2:
        raise UsageError(f"--rendezvous {place} is for several nodes, and the job has {count}")
    if not 0 <= index < count:
        raise UsageError(f"--node-rank {index}: the {count} nodes are 0 to {count - 1}")
    return Rendezvous(host=host, port=port, nodes=count, node=index, wait_s=wait_s)


def check_alone(command: Sequence[str]) -> None:
    """Refuse a command of several nodes where their tools do not meet.

    Raises:
        UsageError: each tool would start other settings, at another time.
    """
    count = _number(command, COUNT, {}, ())
    if count is not None and count > 1:
        raise UsageError(
            f"the job runs on {count} nodes: start tune --rendezvous HOST:{PORT} on each, with "
            "node 0's HOST"
        )


def _place(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\s]+))(?::(\d{1,5}))?", text)
    port = int(found[3] or PORT) if found else 0
    if found is None or not 0 < port < 65536:
        raise UsageError(f"--rendezvous {text!r} is no place: write HOST:PORT, as node0:{PORT}")
    return found[1] or found[2], port


def _number(
    command: Sequence[str],
    options: tuple[str, ...],
    environment: Mapping[str, str],
    variables: tuple[str, ...],
) -> int | None:
    """Return what the launcher's option says, else its variable; None for a range (`1:4`)."""
    told = [
        value
        for at, word in enumerate(command)
        for value in (word.partition("=")[2] if "=" in word else "".join(command[at + 1 : at + 2]),)
        if word.partition("=")[0] in options
    ]
    told += [environment[name] for name in variables if name in environment]
    return int(told[0]) if told and told[0].isdecimal() else None


def shared_words(command: Sequence[str]) -> list[str]:
    """Return the command without what is each node's own; the program by its name alone."""
    words, skip = [Path(command[0]).name], False
    for word in command[1:]:
        if skip:
            skip = False
        elif word.partition("=")[0] in OWN:
            skip = "=" not in word
        else:
            words.append(word)
    return words


def first_difference(mine: Sequence[str], theirs: Sequence[str]) -> str | None:
    """Say where two commands differ, None where they are those of one job."""
    longest = max(len(mine), len(theirs))
    padded = ([*words, *["nothing more"] * (longest - len(words))] for words in (mine, theirs))
    for here, there in zip(*padded, strict=True):
        if here != there:
            return f"{there!r} instead of {here!r}"
    return None
