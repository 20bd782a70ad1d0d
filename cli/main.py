"""The `aiak-tune` command: finds the verb, runs it, and turns errors into a line and a code."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from aiak_tune import __version__
from aiak_tune.cli import catalog, doctor, env, explain, history, profile, run, show, tune
from aiak_tune.cli.files import write_json
from aiak_tune.cli.messages import quote, readable, say
from aiak_tune.errors import AiakTuneError, JobError, UsageError

VERBS = (profile, tune, run, explain, env, history, show, catalog, doctor)
INTERRUPTED = 130
# What a full disk, a quota or a lost device answers; files that verbs write have their own errors.
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}
LOG = "log what happens; -vv: more of it"
BEHIND = "the training command goes behind `--`, as in `aiak-tune {} -- python train.py`"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit code of the process."""
    try:
        code = _main(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _drop_output()  # nobody reads
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        _drop_output()
        say(
            f"the output cannot be written: {error.strerror}; free some space where it goes, or "
            "let it go elsewhere"
        )
    return AiakTuneError.exit_code


def _drop_output() -> None:
    """Send what is left to nowhere: else the interpreter complains when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _main(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser()
    try:
        args = _parse(parser, words)
    except SystemExit as ended:  # argparse has printed help, or what is wrong
        return int(ended.code or 0)
    if args.run is None:
        parser.print_help(sys.stderr)
        return UsageError.exit_code
    _log(args.verbose)
    try:
        with _stoppable(args.stoppable):
            _check(args)
            return int(args.run(args))
    except AiakTuneError as error:
        say(str(error))
        tail = error.tail if isinstance(error, JobError) else ""
        quote(tail)
        code = int(args.refusal or error.exit_code)
        if getattr(args, "json", None) == "-":
            write_json(_failure(error, code, tail), "-")
        return code
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED


def _failure(error: AiakTuneError, code: int, tail: str) -> dict[str, Any]:
    """Return what stands on stdout where a result was asked for and there is none."""
    return {
        "schema": 1,
        "kind": "error",
        "error": type(error).__name__,
        "message": str(error),
        "exit_code": code,
        "last_lines": readable(tail),
    }


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line but what stands behind `--`."""
    parser = _Parser(
        prog="aiak-tune",
        description="Find out what slows a PyTorch training job down, and prove what makes it "
        "faster.",
        epilog="The training command goes behind `--`, as you would type it: "
        "aiak-tune tune -- python train.py --lr 0.1",
    )
    parser.add_argument("--version", action="version", version=f"aiak-tune {__version__}")
    parser.add_argument("-v", "--verbose", action="count", default=0, help=LOG)
    parser.set_defaults(
        run=None, takes_command=False, may_take_command=False, stoppable=False, refusal=None
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=_Parser)
    for verb in VERBS:
        verb.add(verbs)
    for known in verbs.choices.values():  # `tune -v` as well as `-v tune`
        known.add_argument("-v", "--verbose", action="count", default=argparse.SUPPRESS, help=LOG)
    return parser


class _Parser(argparse.ArgumentParser):
    """Takes no shortened options, which a later version's may clash with."""

    def __init__(self, **given: Any) -> None:
        super().__init__(allow_abbrev=False, **given)

    def print_help(self, file: Any = None) -> None:
        # argparse's own says nothing where the output cannot be written.
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        # `run` has the job's exit codes, so wrong use of it has one of its own.
        self.exit(
            self.get_default("refusal") or UsageError.exit_code, f"{self.prog}: error: {message}\n"
        )


def _parse(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Parse what stands before the first `--`; the rest is the job's, whatever it looks like."""
    cut = words.index("--") if "--" in words else len(words)
    args, extra = parser.parse_known_args(words[:cut])
    if extra and args.run is None:
        parser.error(f"cannot read {extra[0]!r}")
    args.extra, args.separated, args.command = extra, cut < len(words), tuple(words[cut + 1 :])
    return args


def _check(args: argparse.Namespace) -> None:
    """Raise UsageError where the words left over or the training command make no sense."""
    verb = args.run.__module__.rpartition(".")[2]
    if args.extra and args.takes_command and not args.separated:
        raise UsageError(f"cannot read {args.extra[0]!r}: {BEHIND.format(verb)}")
    if args.extra:
        raise UsageError(f"cannot read {args.extra[0]!r}: `aiak-tune {verb} --help` says how")
    if args.takes_command and not (args.command and args.command[0]):
        raise UsageError(f"no training command was given: {BEHIND.format(verb)}")
    if args.separated and not (args.takes_command or args.may_take_command):
        raise UsageError(f"`aiak-tune {verb}` takes no training command")


def _log(verbose: int) -> None:
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("aiak_tune").setLevel(level)


class _StderrHandler(logging.Handler):
    """Writes to what stderr is then: the live display puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record))


@contextmanager
def _stoppable(wanted: bool) -> Iterator[None]:
    """Let the polite ways to end a process do what Ctrl-C does: nothing of the job stays behind."""
    if not wanted:
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
