"""Jobs of several ranks on one machine: they end together, and are shown apart."""

from __future__ import annotations

import re
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from running import JOBS, QUICK, start

from aiak_tune.selector.diagnosis import diagnose
from aiak_tune.selector.launch import SLICE_OVER, Outcome

QUICK_PROFILED = replace(QUICK, profiled=2)
RANKS = str(JOBS / "ranks.py")
# What torchrun sets, without its own start of several seconds.
TWO = """
for rank in 0 1; do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \\
    OMP_NUM_THREADS=1 {} &
done
wait
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def two(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """The command that starts both ranks of the job."""
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    return ["bash", "-c", TWO.format(" ".join([sys.executable, RANKS, *words]))]


def last_steps(outcome: Outcome) -> set[int]:
    """The last step that each rank ended, by its own word."""
    found = re.findall(r"rank (\d) ended step (\d+)\.", outcome.tail)
    assert {rank for rank, _ in found} == {"0", "1"}
    return {max(int(step) for who, step in found if who == rank) for rank in "01"}


def test_ranks_that_need_different_windows_end_at_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rank 1 has a loader's queue to use up, rank 0 has a profiler of its own.
    command = two(monkeypatch, "--uneven", "--workers", "2")
    outcome = start(command, tmp_path / "run", plan=QUICK_PROFILED)
    assert diagnose(outcome) is None
    assert outcome.stopped == SLICE_OVER
    assert len(last_steps(outcome)) == 1
    first, second = outcome.results
    assert [r.rank for r in outcome.results] == [0, 1]
    assert {r.world_size for r in outcome.results} == {r.here for r in outcome.results} == {2}
    assert [w[0] for w in first.warnings] == ["own_profiler"]
    assert (first.profiled, second.profiled) == ([], [0, 1])
    assert first.window is not None
    assert second.window is not None
    counted = [len(w.steps) + w.mixed for w in (first.window, second.window)]
    assert counted[0] == counted[1] >= QUICK.steps


@pytest.mark.slow
@pytest.mark.parametrize("told_by", ["variables", "argument"])
def test_ranks_of_spawn_are_known_apart(
    told_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = ["--spawn", str(free_port()), "--told-by", told_by]
    outcome = start([sys.executable, RANKS, *words], tmp_path / "run")
    assert diagnose(outcome) is None
    assert [(r.rank, r.world_size, r.here) for r in outcome.results] == [(0, 2, 2), (1, 2, 2)]
    assert len(last_steps(outcome)) == 1


def test_torchrun_ends_with_all_its_ranks(tmp_path: Path) -> None:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", RANKS]
    outcome = start([sys.executable, *words], tmp_path / "run")
    assert diagnose(outcome) is None
    assert [(r.rank, r.world_size, r.here) for r in outcome.results] == [(0, 2, 2), (1, 2, 2)]
    assert len(last_steps(outcome)) == 1
