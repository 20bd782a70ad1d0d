"""Real traces: an independent reading of the same rules, host clocks, other tools' figures."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from aiak_tune.errors import ProfileError
from aiak_tune.profiles.attribution import Attribution, attribute
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.trace import read_trace

DATA = Path(__file__).parents[1] / "data" / "traces"
# The whole collections lie beside the checkout; the repository holds the smallest of them.
SHARED = Path(__file__).parents[3] / "shared" / "traces"
H200 = SHARED / "h200"
PUBLIC = SHARED / "public"
needs_h200 = pytest.mark.skipif(not H200.is_dir(), reason="../shared/traces/h200 is not here")
needs_public = pytest.mark.skipif(not PUBLIC.is_dir(), reason="../shared/traces/public is not here")


@cache
def attributed(path: Path) -> Attribution:
    return attribute(read_trace(path))


def rows(folder: Path) -> list[Any]:
    """One parameter for each line of the folder's reference; none when it is not here."""
    path = folder / "reference.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [pytest.param(folder, r, id=f"{folder.name}-{r['trace'].split('.')[0]}") for r in found]


@pytest.mark.parametrize(("folder", "row"), rows(DATA) + rows(H200))
def test_it_agrees_with_the_reference(folder: Path, row: dict[str, Any]) -> None:
    result = attributed(folder / row["trace"])
    assert [s.step_ns / 1e6 for s in result.steps] == pytest.approx(row["step_ms"], abs=0.001)
    step_ms = row["mean_step_ms"]
    got = {c.value: ns / 1e6 for c, ns in result.mean.ns.items()}
    wanted: dict[str, float] = row["breakdown_ms"]
    for name in ("compute", "comm", "h2d", "data_wait"):
        assert got[name] == pytest.approx(wanted[name], abs=0.02 * step_ms), name
    idle = wanted["gap"] + wanted["host"]
    assert got["gap"] + got["host"] == pytest.approx(idle, abs=0.02 * step_ms)
    assert got["gap"] == pytest.approx(wanted["gap"], abs=0.08 * step_ms)
    assert got["host"] == pytest.approx(wanted["host"], abs=0.08 * step_ms)


def host_truth() -> list[Any]:
    """For each trace, its steps by the host's clock: wall, in next(loader), in .to(device)."""
    found = []
    for file, sound in (("truth.json", -1), ("truth2.json", None)):
        for job in json.loads((H200 / file).read_text()) if H200.is_dir() else ():
            hosts = job.get("host_ms")
            next_ms = [h["next"] for h in hosts] if hosts else job["next_batch_ms"]
            to_ms = [h.get("to", 0) for h in hosts] if hosts else job["to_device_host_ms"]
            # truth.json's last step holds the profiler's own stop.
            steps = list(zip(job["step_ms"], next_ms, to_ms, strict=True))[:sound]
            found.append(pytest.param(job["label"], steps, id=job["label"]))
    return found


@needs_h200
@pytest.mark.parametrize(("label", "truth"), host_truth())
def test_it_agrees_with_the_hosts_clock(
    label: str, truth: list[tuple[float, float, float]]
) -> None:
    result = attributed(H200 / f"{label}.pt.trace.json.gz")
    for one, (step_ms, next_ms, to_ms) in zip(result.steps, truth, strict=False):
        slack = 0.02 * step_ms
        assert one.step_ns / 1e6 == pytest.approx(step_ms, abs=slack)
        assert one.fetch_ns / 1e6 <= next_ms + slack
        if label != "pageable_big_batch":  # there next() also frees the last batch, outside it
            assert one.fetch_ns / 1e6 == pytest.approx(next_ms, abs=slack)
        assert one.ns[Category.DATA_WAIT] / 1e6 <= next_ms + slack
        assert one.ns[Category.H2D] / 1e6 <= to_ms + slack
        if label in ("input_bound", "h2d_bound"):  # nothing runs while the loop waits
            assert one.ns[Category.DATA_WAIT] / 1e6 == pytest.approx(next_ms, abs=slack)


@pytest.mark.parametrize("job", json.loads((DATA / "cpu_truth.json").read_text()))
def test_on_the_cpu_it_agrees_with_the_hosts_clock(job: dict[str, Any]) -> None:
    result = attributed(DATA / f"{job['trace']}.pt.trace.json.gz")
    assert result.device == "cpu"
    for one, step_ms, fetch_ms in zip(result.steps, job["step_ms"], job["fetch_ms"], strict=True):
        # The trace's step also holds prof.step(), up to 0.5 ms.
        assert one.step_ns / 1e6 == pytest.approx(step_ms, abs=0.5)
        assert one.ns[Category.DATA_WAIT] / 1e6 == pytest.approx(fetch_ms, abs=0.02 * step_ms)
        if job["log_ms"]:
            assert one.ns[Category.HOST] / 1e6 == pytest.approx(job["log_ms"], abs=1)


def files() -> list[Any]:
    paths = sorted(p for p in PUBLIC.rglob("*") if p.suffix in (".json", ".gz", ".zip"))
    return [pytest.param(p, id=str(p.relative_to(PUBLIC))) for p in paths]


NO_TRACE = {
    "SOURCES.json",
    "expected.json",
    "empty_events.json",
    "empty_file.json",
    "not_a_trace.json",
}


@needs_public
@pytest.mark.parametrize("path", files())
def test_every_public_file_gives_steps_that_sum_or_one_clear_error(path: Path) -> None:
    if path.name in NO_TRACE:
        with pytest.raises(ProfileError, match=path.name):
            attributed(path)
        return
    for one in attributed(path).steps:
        assert sum(one.ns.values()) == one.step_ns > 0
        assert min(one.ns.values()) >= 0


@needs_public
@pytest.mark.parametrize(
    "name",
    ["ok.zip", "gzip_named_json.json", "bom.json", "string_ts.json", "nan_literal.json"]
    + ["bare_list.json", "no_closing_bracket.json"],
)
def test_packed_and_mended_variants_read_alike(name: str) -> None:
    plain = attributed(PUBLIC / "derived" / "ok.zip")
    assert attributed(PUBLIC / "derived" / name).steps == plain.steps


SHARES = {
    # INDEX.md, "own" and tb_plugin: idle or category, percent of the steps
    "hta_nccl_data.json.gz": (3, {"idle": 76.4, "comm": 5.9}),
    "hta_ns_resolution.pt.trace.json.gz": (5, {"idle": 2.56, "comm": 0}),
    "hta_diff_control_rank3of8.json.gz": (6, {"comm": 18.9, "data_wait": 0.1}),
    "hta_mi250_rocm62.json.gz": (2, {"idle": 98.4}),
    "tb_resnet50_nw0/worker0.1623143089861.pt.trace.json.gz": (6, {"data_wait": 33.4}),
    "tb_resnet50_nw0/worker0.1623143566756.pt.trace.json.gz": (6, {"data_wait": 22.9}),
    "tb_resnet50_nw4/worker0.1623212756351.pt.trace.json.gz": (6, {"data_wait": 0.8}),
    "tb_resnet50_nw4/worker0.1623213129365.pt.trace.json.gz": (6, {"data_wait": 0.2}),
    "tl_h100_bert_small.json.gz": (1, {"compute": 6.9}),
}


@needs_public
@pytest.mark.parametrize("name", SHARES)
def test_public_traces_read_as_their_index_says(name: str) -> None:
    steps, wanted = SHARES[name]
    result = attributed(PUBLIC / name)
    assert len(result.steps) == steps
    got = {c.value: 100 * result.mean.share(c) for c in Category}
    got["idle"] = 100 - got["compute"] - got["comm"]
    for key, share in wanted.items():
        assert got[key] == pytest.approx(share, abs=1), key


@needs_public
def test_whole_microseconds_would_lose_short_kernels() -> None:
    # TraceLens asserts 0.3094 ms busy with the one copy back; rounding down gives 0.252.
    mean = attributed(PUBLIC / "tl_h100_bert_small.json.gz").mean
    assert mean.ns[Category.COMPUTE] / 1e6 == pytest.approx(0.307, abs=0.003)


def test_on_the_cpu_a_rank_waits_in_collectives_for_one_that_is_away() -> None:
    """Rank 1 sleeps 20 ms a step; DDP's own gloo records lie on threads of their own."""
    prompt, late = (attributed(DATA / f"cpu_ddp_rank{r}.pt.trace.json.gz") for r in (0, 1))
    assert [(r.rank, r.world_size) for r in (prompt, late)] == [(0, 2), (1, 2)]
    assert late.mean.ns[Category.HOST] / 1e6 == pytest.approx(20, abs=2)
    assert prompt.mean.ns[Category.HOST] / 1e6 < 2
    # The wait is rank 0's, less what it shares with the transfer.
    assert prompt.mean.ns[Category.COMM] - late.mean.ns[Category.COMM] > 14e6
    assert prompt.mean.comm_overlapped_ns > 0
