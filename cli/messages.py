"""Messages on stderr, and the cleaning of text from outside. Loads no library: `run` uses it."""

from __future__ import annotations

import sys


def clean(text: str) -> str:
    """Return one line without control characters (escape codes, line ends, direction marks)."""
    return "".join(c if c.isprintable() else " " for c in text)


def say(text: str) -> None:
    """Write one line to stderr, as the tool's: a job's own lines may stand beside it."""
    _write(f"aiak-tune: {clean(text)}")


def quote(text: str) -> None:
    """Write somebody else's lines to stderr, indented."""
    for line in text.splitlines():
        _write(f"  {clean(line)}")


def _write(line: str) -> None:
    try:
        # An ASCII terminal shows ? where it has no ×.
        encoding = sys.stderr.encoding or "utf-8"
        print(line.encode(encoding, "replace").decode(encoding), file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody reads; the exit code still says how it went
