"""Secrets out of commands and texts before anything is stored, sent or logged.

What is replaced: the value of an option or assignment whose name says secret, the password in a
URL, tokens recognised by their shape. Names are judged by words, so that `--tokenizer gpt2`,
`--num-tokens 10`, `--pad-token x` and `--key-dim 64` stay readable. In doubt a value of a secret
name goes: a redacted number costs a reader little, a leaked password much.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from aiak_tune.profiles.workload import Warn
from aiak_tune.selector.results import ConfirmationRun, Measured, Pruned, Trial, TuningResult

MASK = "***"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Before "token": parts of a vocabulary or a count, not credentials.
_VOCABULARY = frozenset(
    "bos class cls end eos image mask max min next num pad per prompt sep special start stop unk"
    .split()
)  # fmt: skip
# Before "key": what makes it a credential, unlike `--key-dim` or `--sort-key`.
_KEY_OF = frozenset(
    "access account api auth comet deploy encryption license neptune private secret shared signing"
    " ssh storage subscription wandb".split()
)
_ALWAYS = re.compile(r"password|passwd|passphrase|secret|credential|(?:api|access|private)key")
_ENV_STYLE = re.compile(r"[A-Z][A-Z0-9_]*\Z")
_HEX_KEY = re.compile(r"[0-9a-f]{40}\Z")
_BEFORE_HEX_KEY = frozenset({"login", "--relogin", "--key", "-k"})

# A name begins at a word's start and its value is read only if it is secret: a long line is
# scanned once, and `env=HF_TOKEN=x` gives its inner name a chance.
_NAME = r"(?<![\w.+-])(?P<name>[-+]{0,2}[A-Za-z_][\w.-]*)"
_ASSIGNED = re.compile(rf"{_NAME}[\"']?[ \t]{{0,3}}[=:][ \t]{{0,3}}")
_OPTION = re.compile(r"(?<![\w.+-])(?P<name>--?[A-Za-z][\w.-]*)(?:[ \t]{1,4}|[\"'],[ \t]{0,4})")
_VALUE = re.compile(
    r"(?P<quote>\"|')(?:\\.|(?!(?P=quote))[^\\\n])*(?P=quote)?|(?!--)[^\s&;,|'\"(){}\[\]]+"
)
_URL_LOGIN = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://)(?P<login>[^\s/?#'\"<>]+)@")
_HEADER = re.compile(r"(?i)\b(?P<head>authorization[\"']?\s*[:=]\s*[\"']?(?:[a-z]+\s+)?)[^\s'\",]+")
_BEARER = re.compile(r"(?i)\b(?P<head>bearer\s+)[\w.~+/=-]{12,}")
_WANDB = re.compile(r"(?i)\b(?P<head>(?:wandb|key|login|relogin)[\s:='\"]{1,4})[0-9a-f]{40}\b")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)", re.S
)
# Each run of characters is entered at its start only: `sk-sk-sk-…` would take quadratic time.
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{16,}|gh[opsur]_[A-Za-z0-9]{16,}|(?:AKIA|ASIA)[0-9A-Z]{16}"
    r"|(?<![-_])(?:github_pat_\w{20,}|glpat-[\w-]{16,}|AIza[\w-]{30,}|xox[abprs]-[\w-]{10,}"
    # A digit, since `sk-learn-pipeline-model` is no key.
    r"|sk-(?=[A-Za-z_-]{0,60}\d)[\w-]{16,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)"
    r")"
)


def redact_command(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command with each secret's value replaced by `***`, the rest as it is."""
    shown: list[str] = []
    for before, argument in zip(["", *argv], argv, strict=False):
        named = before.startswith("-") and "=" not in before and _is_secret(before)
        hex_key = before in _BEFORE_HEX_KEY and _HEX_KEY.match(argument)
        hide = hex_key or (named and not argument.startswith("--"))
        script = before.startswith("-") and before.endswith("c")  # of a shell: many words in one
        redact = redact_text if script else _redact_argument
        shown.append(MASK if hide else redact(argument))
    return tuple(shown)


def redact_text(text: str) -> str:
    """Return a log's or message's text with the secrets in it replaced by `***`."""
    text = _PRIVATE_KEY.sub(MASK, text)
    text = _URL_LOGIN.sub(_mask_login, text)
    text = _HEADER.sub(rf"\g<head>{MASK}", text)
    text = _BEARER.sub(rf"\g<head>{MASK}", text)
    text = _mask_values(text, _ASSIGNED)
    text = _mask_values(text, _OPTION)
    text = _WANDB.sub(rf"\g<head>{MASK}", text)
    return _SHAPES.sub(MASK, text)


def redact_tuning(tuning: TuningResult) -> TuningResult:
    """Return the tuning as it may be stored: command and every free text redacted."""
    return replace(
        tuning,
        job=replace(
            tuning.job,
            command=redact_command(tuning.job.command),
            name=redact_text(tuning.job.name),
        ),
        profile=tuning.profile
        and replace(
            tuning.profile,
            job=replace(
                tuning.profile.job,
                command=redact_command(tuning.profile.job.command),
                name=redact_text(tuning.profile.job.name),
            ),
            warnings=_redact_warnings(tuning.profile.warnings),
        ),
        verdict_reason=_redact_some(tuning.verdict_reason),
        trials=tuple(_redact_trial(trial) for trial in tuning.trials),
        confirmation=tuple(_redact_run(run) for run in tuning.confirmation),
        warnings=_redact_warnings(tuning.warnings),
    )


def _redact_argument(argument: str) -> str:
    name, assigned, _ = argument.partition("=")
    # The whole rest is the value: an argument's quotes and spaces are its own.
    if assigned and re.fullmatch(r"[-+]{0,2}[A-Za-z_][\w.-]*", name) and _is_secret(name):
        return f"{name}={MASK}"
    return redact_text(argument)


@lru_cache(maxsize=4096)
def _is_secret(name: str) -> bool:
    """Judge an option's or variable's name; of a dotted one (`logger.api_key`) the last part."""
    last = name.rpartition(".")[2].lstrip("-+")
    words = [word.lower() for word in _WORDS.findall(last)]
    if not words:
        return False
    if any(_ALWAYS.search(word) for word in words):
        return True
    variable = _ENV_STYLE.match(last) is not None
    for before, word in zip(["", *words], words, strict=False):
        if word == "key" and before in _KEY_OF:
            return True
        if word.endswith("token") and before not in _VOCABULARY and (variable or word is words[-1]):
            return True
    return len(words) > 1 and (words[-1] == "pwd" or (variable and words[-1] == "pass"))


def _mask_values(text: str, names: re.Pattern[str]) -> str:
    """Replace the value after each secret name that the pattern finds."""
    parts: list[str] = []
    start = 0
    for match in names.finditer(text):
        if match.start() < start or not _is_secret(match["name"]):
            continue
        value = _VALUE.match(text, match.end())
        if value is None:
            continue
        quote = value["quote"] or ""
        parts += [text[start : match.end()], quote, MASK, quote]
        start = value.end()
    return "".join([*parts, text[start:]])


def _mask_login(match: re.Match[str]) -> str:
    user, colon, _ = match["login"].partition(":")
    # A long user without a password is a token: https://TOKEN@host.
    shown = MASK if not colon and len(user) >= 16 else user
    return f"{match['scheme']}{shown}{colon and ':' + MASK}@"


def _redact_some(text: str | None) -> str | None:
    return None if text is None else redact_text(text)


def _redact_warnings(warnings: tuple[Warn, ...]) -> tuple[Warn, ...]:
    return tuple(replace(warning, text=redact_text(warning.text)) for warning in warnings)


def _redact_trial(trial: Trial) -> Trial:
    match trial:
        case Measured():
            return replace(trial, reason=_redact_some(trial.reason))
        case Pruned():
            return replace(trial, reason=redact_text(trial.reason))
        case _:
            return replace(
                trial, reason=redact_text(trial.reason), log_tail=_redact_some(trial.log_tail)
            )


def _redact_run(run: ConfirmationRun) -> ConfirmationRun:
    return replace(run, problem=_redact_some(run.problem))
