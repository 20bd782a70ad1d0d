"""The job as its command alone tells it: the program, the name, the fingerprint."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from aiak_tune.errors import JobError, UsageError
from aiak_tune.profiles.fingerprint import job_fingerprint
from aiak_tune.profiles.workload import JobFacts
from aiak_tune.selector.job_name import job_name
from aiak_tune.selector.redaction import redact_command


def job_facts(command: Sequence[str]) -> JobFacts:
    """Return what the command alone tells of the job.

    Raises:
        UsageError: no command.
        JobError: its program cannot be found.
    """
    if not command:
        raise UsageError("no training command: put it after --, as in `-- python train.py`")
    if shutil.which(command[0]) is None:
        raise JobError(f"{command[0]!r} is no program that can be run here: is the path right?")
    shown = redact_command(command)
    return JobFacts(
        fingerprint=job_fingerprint(shown, Path.cwd()), command=tuple(shown), name=job_name(shown)
    )
