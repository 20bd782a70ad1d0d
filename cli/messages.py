"""Messages on stderr, and the cleaning of text from outside. Loads no library: `run` uses it."""

from __future__ import annotations

import re
import sys

_MOST_LINES, _LONGEST, _HEAD = 40, 400, 100
# Bytes that are no text, with what few letters happen to stand among them.
_BINARY = re.compile(
    r"[\ufffd\x00-\x08\x0e-\x1f\x7f-\x9f]"
    r"(?:[^\ufffd\x00-\x08\x0e-\x1f\x7f-\x9f]{0,3}[\ufffd\x00-\x08\x0e-\x1f\x7f-\x9f]){3,}"
)


def clean(text: str) -> str:
    """Return one line without control characters (escape codes, line ends, direction marks)."""
    return "".join(c if c.isprintable() else " " for c in text)


def say(text: str) -> None:
    """Write one line to stderr, as the tool's: a job's own lines may stand beside it."""
    _write(f"aiak-tune: {clean(text)}")


def quote(text: str) -> None:
    """Write somebody else's lines to stderr, indented."""
    for line in readable(text):
        _write(f"  {line}")


def readable(text: str) -> list[str]:
    """Return the last lines of what a job printed, binary or endless ones made short."""
    # By line feeds alone: \x0c and its like stand in binary output everywhere.
    lines = [clean(_BINARY.sub(" … ", line)) for line in text.split("\n")[-_MOST_LINES:]]
    while lines and not lines[-1].strip():
        lines.pop()
    # Of a long line the end says most: a progress bar's last state, an exception's message.
    return [
        line if len(line) <= _LONGEST else f"{line[:_HEAD]} … {line[_HEAD - _LONGEST :]}"
        for line in lines
    ]


def _write(line: str) -> None:
    try:
        # An ASCII terminal shows ? where it has no ×.
        encoding = sys.stderr.encoding or "utf-8"
        print(line.encode(encoding, "replace").decode(encoding), file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody reads; the exit code still says how it went
