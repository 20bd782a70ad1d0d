"""What users can rely on: verbs and their options. A change here is a change for them."""

import argparse
from collections.abc import Iterator

from aiak_tune.cli.main import make_parser

SURFACE = {
    "": {"--version"},
    "profile": {"--steps", "--warmup", "--trace", "--tensorboard", "--workdir-copy", "--json"},
    "tune": {
        "--plan", "--trials", "--time-budget", "--numerics", "--only", "--exclude", "--resume",
        "--steps", "--warmup", "--workdir-copy", "--keep-logs", "--no-wait", "--json",
        "--rendezvous", "--nnodes", "--node-rank", "--rendezvous-timeout",
    },
    "run": {"--plan", "--recommend", "--force", "--no-fallback", "--json"},
    "explain": {"plan", "--json"},
    "env": {"plan", "--python", "--json"},
    "doctor": {"--python", "--storage", "--json"},
    "history": {"--limit", "--job", "--json"},
    "show": {"id", "--json"},
    "catalog": {"--json"},
}  # fmt: skip


def test_verbs_and_options() -> None:
    parser = make_parser()
    found = {"": set(_names(parser))}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {verb: set(_names(sub)) for verb, sub in action.choices.items()}
    everywhere = {"-v", "--verbose"}
    assert found == {verb: names | everywhere for verb, names in SURFACE.items()}


def _names(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            yield from action.option_strings or [action.dest]
