"""Which node this is, where the tools meet, and whether the nodes run one job."""

from __future__ import annotations

import pytest

from aiak_tune.errors import UsageError
from aiak_tune.selector.nodes import (
    PORT,
    check_alone,
    first_difference,
    rendezvous_of,
    shared_words,
)

TORCHRUN = ["torchrun", "--nnodes", "2", "--node-rank=1", "train.py", "--lr", "0.1"]


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        (TORCHRUN, {}),
        (["torchrun", "--nnodes=2", "--node_rank", "1", "train.py"], {"SLURM_NODEID": "0"}),
        (["accelerate", "launch", "--num_machines", "2", "--machine_rank", "1", "x.py"], {}),
        (["srun", "torchrun", "train.py"], {"SLURM_NNODES": "2", "SLURM_NODEID": "1"}),
        (["torchrun", "train.py"], {"PET_NNODES": "2", "PET_NODE_RANK": "1"}),
    ],
)
def test_the_command_or_its_launcher_says_which_node_this_is(
    command: list[str], environment: dict[str, str]
) -> None:
    found = rendezvous_of("node0:123", command, environment)
    assert (found.host, found.port, found.nodes, found.node) == ("node0", 123, 2, 1)


def test_options_come_first() -> None:
    found = rendezvous_of("node0", TORCHRUN, {}, nodes=4, node=3)
    assert (found.nodes, found.node, found.port) == (4, 3, PORT)


@pytest.mark.parametrize(
    ("place", "host", "shown"),
    [("10.0.0.7:29500", "10.0.0.7", "10.0.0.7:29500"), ("[fe80::1]:9", "fe80::1", "[fe80::1]:9")],
)
def test_the_place_may_be_an_address(place: str, host: str, shown: str) -> None:
    found = rendezvous_of(place, TORCHRUN, {})
    assert (found.host, found.place) == (host, shown)


@pytest.mark.parametrize(
    ("place", "command", "said"),
    [
        ("node0:", TORCHRUN, "is no place: write HOST:PORT"),
        ("node0:0", TORCHRUN, "is no place"),
        ("node0:99999", TORCHRUN, "is no place"),
        ("a b:1", TORCHRUN, "is no place"),
        ("node0:1", ["torchrun", "--nnodes", "1:4", "--node-rank", "0", "x.py"], "--nnodes N"),
        ("node0:1", ["torchrun", "--nnodes", "2", "x.py"], "which of the 2 nodes is this one?"),
        ("node0:1", ["torchrun", "--nnodes=1", "--node-rank=0", "x.py"], "and the job has 1"),
        ("node0:1", ["torchrun", "--nnodes=2", "--node-rank=2", "x.py"], "nodes are 0 to 1"),
    ],
)
def test_what_cannot_be_told_is_asked_for(place: str, command: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        rendezvous_of(place, command, {})


def test_a_job_of_several_nodes_needs_a_place_to_meet() -> None:
    with pytest.raises(UsageError, match=f"runs on 2 nodes: start tune --rendezvous HOST:{PORT}"):
        check_alone(TORCHRUN)
    for command in (["torchrun", "--nnodes", "1", "x.py"], ["torchrun", "--nnodes=1:4", "x.py"]):
        check_alone(command)
    check_alone(["python", "x.py"])


def test_one_jobs_commands_differ_in_what_is_each_nodes_own() -> None:
    other = ["/opt/venv/bin/torchrun", "--nnodes", "2", "--node-rank", "0", "train.py"]
    assert first_difference(shared_words(TORCHRUN), shared_words([*other, "--lr", "0.1"])) is None
    assert first_difference(shared_words(TORCHRUN), shared_words([*other, "--lr", "0.2"])) == (
        "'0.2' instead of '0.1'"
    )
    assert first_difference(shared_words(TORCHRUN), shared_words(other)) == (
        "'nothing more' instead of '--lr'"
    )
