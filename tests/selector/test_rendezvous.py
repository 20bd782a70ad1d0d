"""The tools of several nodes, here on one machine: who meets, who does not, and what they start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from contracts.memory_store import MemoryTuningStore
from running import JOBS, QUICK, processes_with, wait_until

from aiak_tune import __version__
from aiak_tune.errors import AiakTuneError, JobError, UsageError
from aiak_tune.optimizations.base import Settings
from aiak_tune.optimizations.catalog import CATALOG
from aiak_tune.selector.leader import Leader
from aiak_tune.selector.link import Link, Message
from aiak_tune.selector.nodes import Rendezvous
from aiak_tune.selector.rendezvous import gathered, joined, this_machine
from aiak_tune.selector.reporter import Silent
from aiak_tune.selector.request import Request
from aiak_tune.selector.results import Measured
from aiak_tune.selector.starts import Starter
from aiak_tune.selector.tune import tune

COMMAND = ("sh", "-c", "exit 0", "--node-rank", "0")
FUSED: Settings = {"fused-optimizer": {"fused": True}}


@pytest.fixture(autouse=True)
def _nothing_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def where() -> Rendezvous:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return Rendezvous(host="127.0.0.1", port=port, nodes=2, node=0, wait_s=30.0)


class Gathering:
    """Node 0's side in a thread: what came of it."""

    def __init__(self, where: Rendezvous) -> None:
        self.notes: list[str] = []
        self.came: list[int] = []
        self.error: AiakTuneError | None = None
        self._thread = threading.Thread(target=self._run, args=(where,))
        self._thread.start()

    def _run(self, where: Rendezvous) -> None:
        try:
            with gathered(where, COMMAND, "here", self.notes.append) as links:
                self.came = sorted(links)
        except AiakTuneError as error:
            self.error = error

    def end(self) -> str:
        self._thread.join(30)
        return str(self.error or "")


def answer_to(where: Rendezvous, **changes: object) -> Message:
    """What node 0 answers to a node that says this of itself."""
    hello = {
        "version": __version__,
        "node": 1,
        "nodes": where.nodes,
        "command": ["sh", "-c", "exit 0"],
    }
    link = Link(socket.create_connection((where.host, where.port), timeout=10), "node 0")
    link.send(hello | changes)
    return link.receive(10) or {}


def listening(gathering: Gathering) -> None:
    wait_until(lambda: gathering.notes or gathering.error, "node 0 listens")


def test_nodes_of_one_job_meet_whatever_calls_in_between(where: Rendezvous) -> None:
    gathering = Gathering(where)
    listening(gathering)
    with socket.create_connection((where.host, where.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        link, machine = joined(replace(where, node=1), (*COMMAND[:-1], "1"))
        assert machine == "here"
        link.send({"ready": True})
        assert gathering.end() == ""
    assert gathering.came == [1]
    assert any("no aiak-tune called" in note for note in gathering.notes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "0.0.9"}, f"node 1 has aiak-tune 0.0.9, node 0 has {__version__}"),
        ({"command": ["sh", "-c", "exit 1"]}, "another command than node 0: 'exit 1' instead"),
        ({"nodes": 3}, "node 1 counts 3 nodes, node 0 2: see --nnodes"),
        ({"node": 0}, "two nodes call themselves node 0"),
    ],
)
def test_what_does_not_fit_is_said_on_both_sides(
    changes: dict[str, object], said: str, where: Rendezvous
) -> None:
    gathering = Gathering(where)
    listening(gathering)
    assert said in str(answer_to(where, **changes)["refused"])
    assert said in gathering.end()
    assert isinstance(gathering.error, UsageError)


def test_two_nodes_of_one_number_are_refused(where: Rendezvous) -> None:
    gathering = Gathering(replace(where, nodes=3))
    listening(gathering)
    assert "welcome" in answer_to(replace(where, nodes=3))
    assert "two nodes call themselves node 1" in str(answer_to(replace(where, nodes=3))["refused"])
    gathering.end()


def test_a_refused_node_has_node_0s_reason(where: Rendezvous) -> None:
    gathering = Gathering(where)
    listening(gathering)
    with pytest.raises(UsageError, match="'exit 9' instead of 'exit 0'"):
        joined(replace(where, node=1), ("sh", "-c", "exit 9"))
    gathering.end()


def test_a_node_that_does_not_come_is_named(where: Rendezvous) -> None:
    with pytest.raises(JobError, match=rf"node 1, 2 did not come to 127.0.0.1:{where.port}"):
        with gathered(replace(where, nodes=3, wait_s=0.3), COMMAND, "here", print):
            pass
    with pytest.raises(JobError, match="node 0 does not answer .*--node-rank 0"):
        joined(replace(where, node=1, wait_s=0.3), COMMAND)


def test_a_place_that_is_not_ours_is_said(where: Rendezvous) -> None:
    with socket.create_server((where.host, where.port)):
        with pytest.raises(JobError, match="node 0 cannot listen at .* that nobody uses"):
            with gathered(where, COMMAND, "here", print):
                pass


class Node1:
    """The other node's tool, as a process of its own."""

    def __init__(self, where: Rendezvous, folder: Path, *command: str) -> None:
        self.plan = folder / "node-1.json"
        words = ["tune", "--rendezvous", where.place, "--nnodes", "2", "--node-rank", "1"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "aiak_tune", *words, "--plan", str(self.plan), "--", *command],
            env={**os.environ, "NODE": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it said."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out + err


@pytest.fixture
def nodes() -> Iterator[list[Node1]]:
    started: list[Node1] = []
    yield started
    for node in started:
        if node.process.poll() is None:
            node.process.kill()
            node.process.communicate()


def test_what_fails_on_another_node_ends_the_tuning_with_its_words(
    where: Rendezvous, tmp_path: Path, nodes: list[Node1], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE", "0")
    command = ("sh", "-c", 'test "$NODE" = 0 && sleep 60; echo no data here; exit 3')
    nodes.append(Node1(where, tmp_path, *command))
    store = MemoryTuningStore()
    said = "node 1: the job ended with exit code 3: no data here"
    with pytest.raises(JobError, match=said) as raised:
        tune(Request(command=command, rendezvous=where), store=store, reporter=Silent())
    assert "no data here" in raised.value.tail
    code, text = nodes[0].end()
    assert code == 1
    assert f"node 0 says: failed: {said}" in text


@pytest.mark.parametrize("killed", [0, 1])
def test_a_tool_that_is_gone_ends_the_job_on_the_other_node(
    killed: int, where: Rendezvous, tmp_path: Path, nodes: list[Node1]
) -> None:
    mark = f"{tmp_path}/running"
    command = ("sh", "-c", f'echo > {mark}-"$NODE"; sleep 60')
    nodes.append(Node1(where, tmp_path, *command))
    words = ["tune", "--rendezvous", where.place, "--nnodes", "2", "--node-rank", "0"]
    leader = subprocess.Popen(
        [sys.executable, "-m", "aiak_tune", *words, "--no-wait", "--", *command],
        env={**os.environ, "NODE": "0"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    both = (leader, nodes[0].process)
    try:
        wait_until(lambda: len(list(tmp_path.glob("running-*"))) == 2, "both parts run")
        both[killed].send_signal(signal.SIGKILL)
        _, said = both[1 - killed].communicate(timeout=30)
    finally:
        leader.kill()
        leader.wait()
    assert both[1 - killed].returncode == 1
    gone = f"node 0 at {where.place}" if killed == 0 else "node 1"
    assert f"{gone} is gone (" in said
    wait_until(lambda: processes_with(str(tmp_path / "data" / "aiak-tune")) == [], "none is left")


def torchrun(node: int, port: int) -> tuple[str, ...]:
    words = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1"]
    words += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    ranks = str(JOBS / "ranks.py")
    return (sys.executable, "-m", "torch.distributed.run", *words, ranks, "--width", "16")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_start_happens_on_both_nodes_with_the_same_settings(
    where: Rendezvous, tmp_path: Path, nodes: list[Node1]
) -> None:
    port = free_port()
    nodes.append(Node1(where, tmp_path, *torchrun(1, port)))
    command = torchrun(0, port)
    with gathered(where, command, this_machine(), print) as links:
        leader = Leader(links)
        starter = Starter(command, tmp_path, Silent(), CATALOG, leader=leader)
        start = starter.start("trial 1", FUSED, replace(QUICK, profiled=2))
        leader.end("no_change", "nothing was proven faster", None)
    assert start.problem is None
    assert [(r.rank, r.world_size, r.here, r.nodes) for r in start.records] == [
        (0, 2, 1, 2), (1, 2, 1, 2),
    ]  # fmt: skip
    windows = [r.window for r in start.records]
    assert len({len(w.steps) + w.mixed for w in windows if w is not None}) == 1
    assert start.effects["fused-optimizer"] is not None
    assert all((start.run_dir / f"trace-{rank}.json").exists() for rank in (0, 1))
    code, said = nodes[0].end()
    assert (code, nodes[0].plan.exists()) == (0, False)
    assert "node 0 says: no_change: nothing was proven faster" in said


@pytest.mark.slow
def test_a_whole_tuning_on_two_nodes_has_one_verdict(
    where: Rendezvous, tmp_path: Path, nodes: list[Node1]
) -> None:
    port = free_port()
    nodes.append(Node1(where, tmp_path, *torchrun(1, port)))
    request = Request(
        command=torchrun(0, port), rendezvous=where, only=("channels-last",),
        slice=replace(QUICK, parity=12, warmup=12, steps=20, profiled=2),
    )  # fmt: skip
    tuning = tune(request, store=MemoryTuningStore(), reporter=Silent())
    assert tuning.verdict == "no_change", "the model has no convolution"
    assert (tuning.environment.nodes, tuning.environment.ranks_per_node) == (2, 1)
    assert isinstance(tuning.trials[0], Measured)
    assert tuning.profile is not None
    assert tuning.profile.steps.samples_per_step == 64
    ranks = tuning.profile.ranks
    assert [r.rank for r in ranks] == [0, 1]
    assert all(r.breakdown_ms and r.comm_waiting_ms is not None for r in ranks)
    code, said = nodes[0].end()
    assert f"node 0 says: no_change: {tuning.verdict_reason}" in said
    assert (code, nodes[0].plan.exists()) == (0, False)
