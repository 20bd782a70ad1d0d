"""Errors that a user can act on.

AiakTuneError             exit code 1
├── UsageError            exit code 2: the command line, a plan or a name given is wrong
│   └── PlanError         a plan that cannot be used here
├── JobError              the job never got to a step, crashed, or hung
├── ProfileError          a trace or a record that cannot be read or makes no sense
├── StoreError            the store cannot be reached, is locked or is damaged
└── NotFoundError         a thing asked for by name or id is not there

A message says what happened, with the value, and what to do next. Nothing here knows HTTP.
"""


class AiakTuneError(Exception):
    """Base of all; `exit_code` is what the command ends with."""

    exit_code = 1


class UsageError(AiakTuneError):
    """The caller's words are wrong."""

    exit_code = 2


class PlanError(UsageError):
    """A plan that cannot be applied: other schema, unknown setting, other job or environment."""


class JobError(AiakTuneError):
    """The job could not be measured; carries its last lines for the reader."""

    def __init__(self, message: str, *, tail: str = "") -> None:
        super().__init__(message)
        self.tail = tail


class ProfileError(AiakTuneError):
    """A trace, record or profile that cannot be read."""


class StoreError(AiakTuneError):
    """The store failed; nothing that was acknowledged is lost."""


class NotFoundError(AiakTuneError):
    """Nothing of this kind has this name."""

    def __init__(self, kind: str, name: str, remedy: str = "") -> None:
        super().__init__(f"there is no {kind} {name!r}" + (f": {remedy}" if remedy else ""))
        self.kind = kind
        self.name = name
