"""A command in the user's own terminal and process group, with its signals and exit code.

Loads the standard library alone: a job that runs as written has nothing else to wait for.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from types import FrameType

from aiak_tune.errors import JobError

PASSED_ON = (
    signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGCONT,
)  # fmt: skip
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
PR_SET_PDEATHSIG = 1


def run_here(command: Sequence[str], environment: dict[str, str] | None = None) -> tuple[int, bool]:
    """Run a command to its end; pass signals on.

    Returns its exit code (128 + n where signal n ended it), and whether it was asked to end.

    Raises:
        JobError: it cannot be started.
    """
    own = os.getpid()

    def before_exec() -> None:
        # A job whose tool is gone has nobody to report to: end it as its scheduler would.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != own:
            os._exit(1)

    try:
        process = subprocess.Popen(command, env=environment, preexec_fn=before_exec)
    except OSError as error:
        raise JobError(f"{command[0]} cannot be started: {error.strerror}") from error

    seen: set[int] = set()

    def passed_on(number: int, frame: FrameType | None) -> None:
        seen.add(number)
        # The terminal sends Ctrl-C to the job too, which decides by itself what it means.
        if number != signal.SIGINT:
            process.send_signal(number)

    before = {s: signal.signal(s, passed_on) for s in (signal.SIGINT, *PASSED_ON)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code, bool(seen & ENDING)
