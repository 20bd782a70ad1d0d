"""The tools of a job's nodes meet: node 0 listens, checks that all run one job, and is obeyed.

Who reaches the port can take part, as with torchrun's own: keep it inside the cluster. A follower
runs its own command only, under settings of the catalog; nothing else is taken from a message.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiak_tune import __version__
from aiak_tune.errors import JobError, UsageError
from aiak_tune.selector.link import Link
from aiak_tune.selector.nodes import Rendezvous, first_difference, shared_words
from aiak_tune.selector.redaction import redact_command

POLL_S = 0.2
HELLO_S = 10.0
Note = Callable[[str], None]


@contextmanager
def gathered(
    where: Rendezvous, command: Sequence[str], machine: str, note: Note
) -> Iterator[dict[int, Link]]:
    """Listen until every other node is ready; the links end with the block.

    Raises:
        JobError: the port is taken, or a node does not come in time.
        UsageError: a node's version or command is another one.
    """
    links: dict[int, Link] = {}
    try:
        with _listening(where) as server:
            note(f"waiting at {where.place} for {where.nodes - 1} other nodes")
            deadline = time.monotonic() + where.wait_s
            while len(links) < where.nodes - 1:
                server.settimeout(max(0.01, min(POLL_S, deadline - time.monotonic())))
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    if time.monotonic() < deadline:
                        continue
                    raise JobError(_absent(where, set(links))) from None
                found = _admitted(connection, where, command, machine, set(links))
                if found is None:
                    note(f"something that is no aiak-tune called at {where.place}")
                    continue
                node, links[node] = found[0], found[1]
                note(f"node {node} is here")
        for link in links.values():
            _expect_ready(link, deadline)
        yield links
    finally:
        for link in links.values():
            link.close()


@contextmanager
def _listening(where: Rendezvous) -> Iterator[socket.socket]:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            where.host, where.port, type=socket.SOCK_STREAM
        )[0]
        server = socket.create_server(address, family=family, backlog=64)
    except OSError as error:
        raise JobError(
            f"node 0 cannot listen at {where.place} ({error.strerror or error}): HOST is a name or "
            "address of this node, and PORT one that nobody uses"
        ) from error
    with server:
        yield server


def _admitted(
    connection: socket.socket,
    where: Rendezvous,
    command: Sequence[str],
    machine: str,
    known: set[int],
) -> tuple[int, Link] | None:
    """Hear who it is; answer with a welcome, or with the reason why not. None: a stranger."""
    link = Link(connection, "the caller")
    try:
        hello = link.receive(HELLO_S) or {}
    except JobError:
        hello = {}
    if not isinstance(hello.get("node"), int) or not isinstance(hello.get("command"), list):
        link.close()
        return None
    refusal = _refusal(hello, where, command, known)
    if refusal is not None:
        link.send({"refused": refusal})
        link.close()
        raise UsageError(refusal)
    link.who = f"node {hello['node']}"
    link.send({"welcome": __version__, "machine": machine})
    return int(hello["node"]), link


def _refusal(
    hello: dict[str, Any], where: Rendezvous, command: Sequence[str], known: set[int]
) -> str | None:
    node = int(hello["node"])
    if hello.get("version") != __version__:
        return f"node {node} has aiak-tune {hello.get('version')}, node 0 has {__version__}"
    if hello.get("nodes") != where.nodes:
        return f"node {node} counts {hello.get('nodes')} nodes, node 0 {where.nodes}: see --nnodes"
    if not 0 < node < where.nodes or node in known:
        return f"two nodes call themselves node {node}: --node-rank says which is which"
    mine = shared_words(redact_command(command))
    apart = first_difference(mine, [str(word) for word in hello["command"]])
    if apart is not None:
        return f"node {node} runs another command than node 0: {apart}"
    return None


def _expect_ready(link: Link, deadline: float) -> None:
    if link.receive(max(1.0, deadline - time.monotonic())) != {"ready": True}:
        raise JobError(f"{link.who} did not get ready in time: does another tuning run there?")


def _absent(where: Rendezvous, here: set[int]) -> str:
    missing = [str(n) for n in range(1, where.nodes) if n not in here]
    return (
        f"node {', '.join(missing)} did not come to {where.place} within {where.wait_s:.0f} s: "
        "start the same aiak-tune command there, with its own --node-rank"
    )


def joined(where: Rendezvous, command: Sequence[str]) -> tuple[Link, str]:
    """Call node 0 until it answers; return the link, and which machine node 0 is on.

    Raises:
        JobError: nobody answers in time.
        UsageError: node 0 does not take us, with its reason.
    """
    deadline = time.monotonic() + where.wait_s
    while True:
        try:
            connection = socket.create_connection((where.host, where.port), timeout=HELLO_S)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise JobError(
                    f"node 0 does not answer at {where.place} ({error.strerror or error}) within "
                    f"{where.wait_s:.0f} s: start the same aiak-tune command there, with "
                    "--node-rank 0"
                ) from error
            time.sleep(POLL_S)
    link = Link(connection, f"node 0 at {where.place}")
    link.send(
        {
            "version": __version__,
            "node": where.node,
            "nodes": where.nodes,
            "command": shared_words(redact_command(command)),
        }
    )
    answer = link.receive(where.wait_s) or {}
    if "welcome" in answer:
        return link, str(answer.get("machine"))
    link.close()
    raise UsageError(str(answer.get("refused") or f"{link.who} does not take us"))


def this_machine() -> str:
    """Return what tells this machine's running system from any other."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
