"""Frameworks that save, remove and read back checkpoints in a start, beside those of a user."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from running import QUICK, start
from tree import ROOT

from aiak_tune.selector.side_effects import side_effects

pytestmark = pytest.mark.clients

BIN, HERE = ROOT / ".venv-clients" / "bin", Path(__file__).parent
TWO_RANKS = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]
# The job, how it is started, and the checkpoint of 12 steps that it goes on from.
JOBS = {
    "saves_trainer": ([str(BIN / "python")], "out/checkpoint-12"),
    "saves_lightning": ([str(BIN / "python")], "ckpt/last.ckpt"),
    "saves_accelerate": ([str(BIN / "python")], "proj/checkpoints/checkpoint_2"),
    "saves_distributed": (TWO_RANKS, "ckpt"),
}


def content() -> dict[str, str]:
    found = (p for p in Path(".").rglob("*") if p.is_file())
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}


@pytest.mark.parametrize("job", JOBS)
def test_the_users_checkpoints_stay_and_the_job_goes_on(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (BIN / ".ready").exists():
        pytest.skip("the clients' environment is not there: run `make test-clients`")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "theirs").mkdir()
    monkeypatch.chdir(tmp_path / "theirs")
    python, kept = JOBS[job]
    command = [*python, str(HERE / f"{job}.py")]
    subprocess.run([*command, "12"], check=True, capture_output=True, timeout=300)
    before = content()
    assert os.path.exists(kept)
    outcome = start([*command, "5000", kept], tmp_path / "run", plan=QUICK)
    assert {r.status for r in outcome.results} == {"complete"}, outcome.tail
    assert content() == before
    told = {warning.code: warning.text for warning in side_effects(tmp_path / "run")}
    assert told["resumed"].startswith(f"the job resumes from {kept}")
    assert "saves_redirected" in told and "files_written" not in told
