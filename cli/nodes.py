"""`tune` on several nodes: its options, and what a node does that is not node 0."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aiak_tune.cli.options import at_least, seconds

if TYPE_CHECKING:
    from aiak_tune.selector.nodes import Rendezvous
    from aiak_tune.selector.request import Request

CODES = {"faster": 0, "no_change": 0, "interrupted": 130}  # by the verdict


def add_node_options(verb: argparse.ArgumentParser) -> None:
    """Add where the nodes meet, how many they are, and which of them this is."""
    verb.add_argument(
        "--rendezvous", metavar="HOST:PORT",
        help="for a job on several nodes: start this on each, with node 0's HOST; node 0 decides",
    )  # fmt: skip
    verb.add_argument(
        "--nnodes", type=at_least(2), metavar="N",
        help="on how many (as the command or its launcher says)",
    )  # fmt: skip
    verb.add_argument(
        "--node-rank", type=at_least(0), metavar="N",
        help="which of them this is, from 0 (likewise)",
    )  # fmt: skip
    verb.add_argument(
        "--rendezvous-timeout", type=seconds, metavar="TIME",
        help="wait so long for the other nodes (10m)",
    )  # fmt: skip


def rendezvous_asked(args: argparse.Namespace) -> Rendezvous | None:
    """Return where the nodes meet, None for a job on one.

    Raises:
        UsageError: the options do not go together, it cannot be told which node this is, or a
            job of several nodes has no place to meet.
    """
    import os

    from aiak_tune.errors import UsageError
    from aiak_tune.selector.nodes import check_alone, rendezvous_of

    if args.rendezvous is None:
        told = {"--nnodes": args.nnodes, "--node-rank": args.node_rank}
        told["--rendezvous-timeout"] = args.rendezvous_timeout
        alone = next((name for name, value in told.items() if value is not None), None)
        if alone is not None:
            raise UsageError(f"{alone} goes with --rendezvous HOST:PORT")
        check_alone(args.command)
        return None
    return rendezvous_of(
        args.rendezvous, args.command, os.environ, nodes=args.nnodes, node=args.node_rank,
        wait_s=args.rendezvous_timeout or 600.0,
    )  # fmt: skip


def follow_node_0(request: Request, args: argparse.Namespace) -> int:
    """Do this node's part; the plan is written here too, the tuning is stored by node 0."""
    from aiak_tune.cli.files import write_json, write_whole
    from aiak_tune.cli.messages import say
    from aiak_tune.cli.progress import reporting
    from aiak_tune.selector.follower import follow

    with reporting(args.command) as reporter:
        found = follow(request, reporter=reporter)
    written = ""
    if found.plan is not None:
        write_whole(args.plan, found.plan)
        written = f"; the plan is in {args.plan}"
    reason = f": {found.reason}" if found.reason else ""
    say(f"node 0 says: {found.verdict}{reason}{written}")
    if args.json is not None:
        told = {"verdict": found.verdict, "reason": found.reason}
        write_json({"schema": 1, "kind": "node", **told, "plan_written": bool(written)}, args.json)
    return CODES.get(found.verdict, 1)
