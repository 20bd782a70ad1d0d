"""`--json -` on every verb: standard output is one JSON document and nothing else."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from contracts.example_tuning import example_tuning
from running import JOBS

from aiak_tune.api.store import open_store
from aiak_tune.cli import main
from aiak_tune.optimizations.base import Numerics
from aiak_tune.profiles.workload import Environment
from aiak_tune.selector.plan import dump_plan
from aiak_tune.selector.results import Plan, PlanJob

FAILS = [sys.executable, "-c", "print('to stdout'); raise SystemExit(3)"]
SMALL = [sys.executable, str(JOBS / "small.py")]
PLAN = Plan(
    tuning_id="01JE5Q3X7N0000000000000001",
    job=PlanJob(fingerprint=None, model_fingerprint=None, name="small.py"),
    environment=Environment(cores=0),
    settings={"data-workers": {"num_workers": 1}},
    speedup=1.5,
    ci95=(1.4, 1.6),
    numerics=Numerics.LOSSLESS,
)
# verb: the words before and behind `--`, the exit code, the document's kind.
VERBS: dict[str, tuple[list[str], list[str], int, str]] = {
    "profile": (["--steps", "8", "--warmup", "2"], SMALL, 0, "profile"),
    "tune": ([], FAILS, 1, "error"),
    "run": (["--plan", "p.json", "--force"], [*SMALL, "--steps", "25"], 0, "run"),
    "explain": (["p.json"], [], 0, "explanation"),
    "env": ([], [sys.executable], 0, "environment"),
    "doctor": ([], [sys.executable], 0, "doctor"),
    "history": ([], [], 0, "history"),
    "show": (["last"], [], 0, "tuning"),
    "catalog": ([], [], 0, "catalog"),
}


@pytest.fixture(autouse=True)
def nothing_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("AIAK_TUNE_STORE", f"sqlite:///{tmp_path / 'tunings.db'}")
    monkeypatch.chdir(tmp_path)
    Path("p.json").write_text(dump_plan(PLAN))


def verbs() -> dict[str, argparse.ArgumentParser]:
    for action in main.make_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("no verbs")


def run_verb(verb: str, target: str) -> int:
    words, command, code, _ = VERBS[verb]
    behind = ["--", *command] if command else []
    assert main.main([verb, *words, "--json", target, *behind]) == code
    return code


def only_document(text: str) -> Any:
    return json.loads(text, parse_constant=pytest.fail)


def test_every_verb_is_here() -> None:
    assert set(VERBS) == set(verbs())


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "run"])
def test_stdout_is_one_document(verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    with open_store() as store:
        store.save(example_tuning())
    run_verb(verb, "-")
    document = only_document(capfd.readouterr().out)
    assert (document["schema"], document["kind"]) == (1, VERBS[verb][3])


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [(["show", "zzz"], 1, "NotFoundError"), (["explain", "no.json"], 2, "UsageError"),
     (["run", "--plan", "no.json", "--", "true"], 125, "UsageError")],
)  # fmt: skip
def test_where_there_is_no_result_the_document_says_why(
    words: list[str], code: int, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.main([words[0], "--json", "-", *words[1:]]) == code
    out, err = capfd.readouterr()
    told = only_document(out)
    assert (told["kind"], told["error"], told["exit_code"]) == ("error", kind, code)
    assert err == f"aiak-tune: {told['message']}\n"


def test_a_failed_job_is_quoted_in_the_document(capfd: pytest.CaptureFixture[str]) -> None:
    run_verb("tune", "-")
    told = only_document(capfd.readouterr().out)
    assert "ended with exit code 3" in told["message"]
    assert told["last_lines"] == ["to stdout"]


def test_a_run_tells_what_its_plan_did(capfd: pytest.CaptureFixture[str]) -> None:
    run_verb("run", "-")
    told = only_document(capfd.readouterr().out)
    assert (told["kind"], told["exit_code"]) == ("run", 0)
    assert told["tuning_id"] == PLAN.tuning_id
    assert told["settings"] == {"data-workers": {"num_workers": 1}}
    assert "worker processes" in told["effects"]["data-workers"]
    assert told["updates"] >= 20


def test_a_jobs_output_goes_to_stderr_beside_a_document(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main.main(["run", "--json", "-", "--", *FAILS]) == 3
    out, err = capfd.readouterr()
    told = only_document(out)
    assert (told["exit_code"], told["settings"], told["effects"]) == (3, {}, None)
    assert "to stdout" in err and "no plan given" in told["notes"][0]
    print("stdout is back", flush=True)
    assert capfd.readouterr().out == "stdout is back\n"
