"""Secrets leave commands and texts; what only looks like one stays readable."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiak_tune.selector.redaction import MASK, redact_command, redact_text

HEX = "0123456789abcdef0123456789abcdef01234567"

SECRET = [
    ("--token", "hush"),
    ("--api-key=hush",),
    ("--api_key", "hush"),
    ("--apiKey", "hush"),
    ("--hub_token", "hush"),
    ("-password", "hush"),
    ("--password", "-hush"),
    ("--db-password=hush and more hush",),
    ("HF_TOKEN=hush",),
    ("AWS_SECRET_ACCESS_KEY=hush",),
    ("AWS_ACCESS_KEY_ID=hush",),
    ("MYTOKEN=hush",),
    ("IMAGE_REGISTRY_TOKEN=hush",),
    ("env=HF_TOKEN=hush",),
    ("logger.wandb.api_key=hush",),
    ("+logger.api_key=hush",),
    ("https://me:hush@host/path",),
    ("postgresql://me:hu@hush@host:5432/db?x=1",),
    ("https://hushhushhushhushhush@github.com/x",),
    ("https://host/data?access_token=hush&n=1",),
    ("bash", "-c", "export HF_TOKEN='hush hush'; python x.py --api-key hush --lr 3"),
    ("curl", "-H", "Authorization: Bearer hush"),
]
HARMLESS = [
    ("python", "train.py", "--lr", "0.1", "--seed=3"),
    ("--tokenizer", "gpt2", "--num-tokens", "10", "--key-dim", "64"),
    ("--max-token", "10", "--pad-token", "<pad>", "PAD_TOKEN_ID=0", "--cls-token=[CLS]"),
    ("TOKENIZERS_PARALLELISM=false", "OMP_NUM_THREADS=4", "PWD=/home/me", "--sort-key", "name"),
    ("--config", "a/b.yaml", "https://host:8080/a/b@2x.png", "git@host:a/b.git"),
    ("--token", "--lr", "1"),
    ("hf_transformer_big", "sk-learn-pipeline-model", "task-1234567890123456789", HEX),
]


@pytest.mark.parametrize("argv", SECRET, ids=" ".join)
def test_a_secret_is_replaced(argv: tuple[str, ...]) -> None:
    shown = redact_command(argv)
    assert "hush" not in " ".join(shown)
    assert MASK in " ".join(shown)
    assert len(shown) == len(argv)


@pytest.mark.parametrize("argv", HARMLESS, ids=" ".join)
def test_what_is_harmless_stays(argv: tuple[str, ...]) -> None:
    assert redact_command(argv) == argv


def test_what_stands_around_a_secret_stays() -> None:
    assert redact_command(["bash", "-c", "HF_TOKEN=hush python x.py --api-key 'k' --lr 3"])[2] == (
        "HF_TOKEN=*** python x.py --api-key '***' --lr 3"
    )
    assert redact_text("https://me:hush@host/p") == "https://me:***@host/p"


@pytest.mark.parametrize(
    "token",
    [
        "hf_" + "aB3" * 10,
        "ghp_" + "aB3" * 12,
        "github_pat_" + "a1B2_" * 6,
        "sk-" + "aB3" * 10,
        "sk-proj-" + "aB3_" * 10,
        "AKIA" + "A1B2" * 4,
        "xoxb-123456-abcdef",
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2lnbmF0dXJl",
        "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_token_is_known_by_its_shape(token: str) -> None:
    assert redact_text(f"failed with ({token}) at once") == "failed with (***) at once"
    assert redact_command(["x", token]) == ("x", MASK)


def test_forty_hex_digits_are_a_key_only_after_its_name() -> None:
    assert redact_command(["wandb", "login", HEX]) == ("wandb", "login", MASK)
    assert redact_text(f"wandb: {HEX}") == "wandb: ***"
    assert redact_text(f"commit {HEX}") == f"commit {HEX}"


@pytest.mark.parametrize(
    "text",
    [
        '{"password": "hush hush", "lr": 3}',
        "{'api_key': 'hush'}",
        "argv: ['train.py', '--token', 'hush', '--lr', '1']",
        "password=hush, retrying",
        "WANDB_API_KEY: hush",
    ],
)
def test_logs_and_dumps_are_redacted_too(text: str) -> None:
    assert "hush" not in redact_text(text)
    assert text[-1] in redact_text(text)[-1:] + "h"  # the end is not swallowed


def test_a_long_hostile_line_takes_linear_time() -> None:
    for part in ("sk-", "a=", "token ", "eyJ-", "://a:", "--token '"):
        redact_text(part * 30_000)  # quadratic would be minutes


VALUES = st.text(string.ascii_letters + string.digits + "_.+/", min_size=6).map(lambda v: "Q9" + v)
NAMES = st.sampled_from(["--token", "--api-key", "--hub-token", "--password", "--client-secret"])
PLAIN = st.lists(st.sampled_from(["python", "train.py", "--lr", "0.1", "-v", "--amp"]), max_size=4)


@given(before=PLAIN, name=NAMES, value=VALUES, joined=st.booleans(), after=PLAIN)
def test_no_secret_value_survives_anywhere_in_a_command(
    before: list[str], name: str, value: str, joined: bool, after: list[str]
) -> None:
    given_ = [f"{name}={value}"] if joined else [name, value]
    shown = redact_command([*before, *given_, *after])
    assert value not in " ".join(shown)
    assert shown[: len(before)] == tuple(before)
    assert shown[len(before) + len(given_) :] == tuple(after)


@given(st.lists(st.text(max_size=20), max_size=6))
def test_redacting_twice_changes_nothing_more(argv: list[str]) -> None:
    once = redact_command(argv)
    assert redact_command(once) == once
    assert len(once) == len(argv)


@given(st.text())
def test_redacting_a_text_twice_changes_nothing_more(text: str) -> None:
    assert redact_text(redact_text(text)) == redact_text(text)
