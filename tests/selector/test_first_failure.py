"""Which rank of several failed first, from what each said and from what the job printed."""

from __future__ import annotations

from aiak_tune.agent.records import FailedRank
from aiak_tune.selector.first_failure import first_failure

OWN = FailedRank(rank=1, at_ns=200, error="ValueError: bad sample\nin a shard", text="Traceback …")
PEER = FailedRank(
    rank=0, at_ns=100, error="RuntimeError: […] Connection closed by peer [::1]", text="Traceback …"
)
# As torchrun of torch 2.13 prints it.
SUMMARY = """
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 9715)  (SIGTERM)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-12-07_11:59:18
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 9716)
  traceback : Signal 9 (SIGKILL) received by PID 9716
"""
SPAWNED = """
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 1 terminated with the following error:
Traceback (most recent call last):
ValueError: rank 1 cannot go on
"""


def test_a_rank_that_lost_its_peer_did_not_fail_first() -> None:
    found = first_failure([PEER, OWN], "")
    assert found is not None
    assert (found.rank, found.why, found.text) == (1, "ValueError: bad sample", OWN.text)


def test_the_first_of_two_failures_counts() -> None:
    later = FailedRank(rank=2, at_ns=300, error="KeyError: 3", text="")
    found = first_failure([later, OWN], SUMMARY)
    assert found is not None
    assert found.rank == 1


def test_a_rank_that_was_killed_is_known_by_torchruns_summary() -> None:
    found = first_failure([PEER], SUMMARY)
    assert found is not None
    assert (found.rank, found.why, found.text) == (1, "ended by signal 9", "")


def test_a_process_of_spawn_is_known_by_its_parents_error() -> None:
    found = first_failure([], SPAWNED)
    assert found is not None
    assert (found.rank, found.why) == (1, "ValueError: rank 1 cannot go on")


def test_when_all_lost_a_peer_the_first_to_say_so_is_named() -> None:
    found = first_failure([PEER], "")
    assert found is not None
    assert (found.rank, "Connection closed by peer" in found.why) == (0, True)


def test_nothing_said_is_nothing_known() -> None:
    assert first_failure([], "Killed") is None
