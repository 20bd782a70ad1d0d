"""Attribution against an instant-by-instant reading of DESIGN.md section 4, and its cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_events import (
    Event,
    call,
    collective,
    copy_in,
    event,
    fetch,
    kernel,
    operator,
    step,
    trace,
)

from aiak_tune.errors import ProfileError
from aiak_tune.profiles.attribution import Attribution, attribute
from aiak_tune.profiles.category import Category

# The machine is shared: no example fails for being slow.
UNHURRIED = settings(deadline=None, max_examples=60)
NODE = "autograd::engine::evaluate_function: MulBackward0"
# The oracle works in units of 100 us; host needs more than 10 of them on end.
UNIT = 100
LENGTH = 60
SPAN = st.tuples(st.integers(0, LENGTH - 1), st.integers(1, 15)).map(
    lambda s: (s[0], min(s[0] + s[1], LENGTH))
)
SPANS = st.lists(SPAN, max_size=4)
Spans = list[tuple[int, int]]


def ms(result: Attribution, index: int = 0) -> dict[str, float]:
    """The categories that have time, in milliseconds."""
    return {c.value: ns / 1e6 for c, ns in result.steps[index].ns.items() if ns}


def codes(result: Attribution) -> set[str]:
    return {w.code for w in result.warnings}


def device_events(parts: dict[str, Spans]) -> list[Event]:
    events: list[Event] = [step(1, 0, 30 * UNIT), step(2, 30 * UNIT, LENGTH * UNIT)]
    for start, end in parts["copies"]:
        number = len(events)
        events.append(copy_in(start * UNIT, end * UNIT, number))
        events.append(call("cudaMemcpyAsync", (start - 1) * UNIT, (start + 1) * UNIT, number))
    for name, make in (
        ("kernels", kernel),
        ("collectives", collective),
        ("fetches", fetch),
        ("operators", operator),
        ("nodes", lambda a, b: operator(a, b, NODE, thread=2)),
    ):
        events += [make(start * UNIT, end * UNIT) for start, end in parts[name]]
    return events


def units(spans: Spans) -> set[int]:
    return {u for start, end in spans for u in range(start, end)}


def long_absences(busy: set[int], first: int) -> set[int]:
    """Units in stretches of more than 10 without any busy one."""
    away: set[int] = set()
    stretch: set[int] = set()
    for u in range(first, LENGTH + 1):
        if u in busy or u == LENGTH:
            away |= stretch if len(stretch) > 10 else set()
            stretch = set()
        else:
            stretch.add(u)
    return away


def first_that_holds(order: Sequence[tuple[Category, set[int]]], step_units: range) -> Counter[str]:
    return Counter(
        next((category.value for category, held in order if u in held), "gap") for u in step_units
    )


PARTS = st.fixed_dictionaries(
    dict.fromkeys(("kernels", "collectives", "copies", "fetches", "operators", "nodes"), SPANS)
)


@UNHURRIED
@given(PARTS)
def test_each_instant_goes_to_the_first_category_that_holds(parts: dict[str, Spans]) -> None:
    parts["kernels"].append((0, 1))
    staging = [(start - 1, start + 1) for start, _ in parts["copies"]]
    busy = units(parts["operators"]) | units(parts["nodes"]) | units(staging)
    order = (
        (Category.COMPUTE, units(parts["kernels"])),
        (Category.COMM, units(parts["collectives"])),
        (Category.H2D, units(parts["copies"]) | units(staging)),
        (Category.DATA_WAIT, units(parts["fetches"])),
        (Category.HOST, long_absences(busy, min(0, *(s for s, _ in staging), 0))),
    )
    result = attribute(trace(device_events(parts)))
    for index, step_units in enumerate((range(30), range(30, LENGTH))):
        wanted = {k: v * UNIT / 1e3 for k, v in first_that_holds(order, step_units).items()}
        assert ms(result, index) == pytest.approx(wanted)


@UNHURRIED
@given(PARTS)
def test_on_the_cpu_a_fetch_wins_over_what_runs_in_it(parts: dict[str, Spans]) -> None:
    events = [step(1, 0, 30 * UNIT), step(2, 30 * UNIT, LENGTH * UNIT)]
    for name, make in (
        ("fetches", fetch),
        ("operators", operator),
        ("nodes", lambda a, b: operator(a, b, NODE, thread=2)),
        ("collectives", lambda a, b: event("user_annotation", "gloo:all_reduce", a, b, thread=9)),
        ("copies", lambda a, b: operator(a, b, "c10d::allreduce_")),
    ):
        events += [make(start * UNIT, end * UNIT) for start, end in parts[name]]
    computing = units(parts["operators"]) | units(parts["nodes"])
    calls = units(parts["copies"])
    order = (
        (Category.DATA_WAIT, units(parts["fetches"])),
        (Category.COMM, units(parts["collectives"]) - computing | calls),
        (Category.COMPUTE, computing),
        (Category.HOST, long_absences(computing | calls, 0)),
    )
    result = attribute(trace(events))
    assert result.device == "cpu"
    for index, step_units in enumerate((range(30), range(30, LENGTH))):
        wanted = {k: v * UNIT / 1e3 for k, v in first_that_holds(order, step_units).items()}
        assert ms(result, index) == pytest.approx(wanted)


TIME = st.integers(0, 3_000_000)
RAGGED = st.lists(st.tuples(st.integers(0, 6), TIME, TIME), max_size=25)


def ragged_events(drawn: list[tuple[int, int, int]]) -> list[Event]:
    """Events at any nanosecond, the last of each kind cut off by nothing."""
    makers = (
        kernel,
        collective,
        fetch,
        operator,
        lambda a, b: operator(a, b, NODE, thread=2),
        lambda a, b: call("cudaStreamSynchronize", a, b),
        lambda a, b: event("gpu_memset", "Memset (Device)", a, b, thread=7),
    )
    events: list[Event] = [step(5, 0, 1000), step(6, 1001.5, 2500), step(9, 2600, 3000)]
    events += [makers[kind](min(a, b) / 1e3, max(a, b) / 1e3) for kind, a, b in drawn]
    return events


@UNHURRIED
@given(RAGGED)
def test_categories_sum_to_the_step_to_the_nanosecond(drawn: list[tuple[int, int, int]]) -> None:
    result = attribute(trace(ragged_events(drawn)))
    assert [s.step_ns for s in result.steps] == [1_001_500, 1_498_500, 400_000]
    for one in result.steps:
        assert sum(one.ns.values()) == one.step_ns
        assert min(one.ns.values()) >= 0
        assert one.fetch_ns == one.ns[Category.DATA_WAIT] + one.fetch_overlapped_ns
        assert (one.gap_sync_ns or 0) <= one.ns[Category.GAP]
        assert one.matmul_ns <= one.ns[Category.COMPUTE]


@UNHURRIED
@given(RAGGED, st.integers(-(10**6), 10**9), st.randoms())
def test_shifting_and_reordering_change_nothing(
    drawn: list[tuple[int, int, int]], shift_us: int, random: object
) -> None:
    events = ragged_events(drawn)
    moved = [{**e, "ts": round(e["ts"] * 1000 + shift_us * 1000) / 1000} for e in events]
    random.shuffle(moved)  # type: ignore[attr-defined]
    assert attribute(trace(moved)) == attribute(trace(events))


@UNHURRIED
@given(RAGGED, st.floats(0, 1))
def test_cutting_events_in_two_changes_nothing(
    drawn: list[tuple[int, int, int]], where: float
) -> None:
    events = ragged_events(drawn)
    pieces: list[Event] = []
    for e in events:
        first_ns = int(where * e["dur"] * 1000)
        rest_ns = round(e["dur"] * 1000) - first_ns
        pieces.append({**e, "dur": first_ns / 1000})
        at = (round(e["ts"] * 1000) + first_ns) / 1000
        pieces.append({**e, "ts": at, "dur": rest_ns / 1000})
    whole, cut = attribute(trace(events)), attribute(trace(pieces))
    assert cut.steps == whole.steps
    assert cut.mean == whole.mean


def test_a_kernel_belongs_to_the_step_it_runs_in() -> None:
    events = [step(1, 0, 1000), step(2, 1000, 2000), call("cudaLaunchKernel", 10, 20, 4)]
    result = attribute(trace([*events, kernel(900, 1400)]))
    assert [s.ns[Category.COMPUTE] for s in result.steps] == [100_000, 400_000]


def test_the_devices_copy_of_a_mark_is_no_step() -> None:
    shadow = event("gpu_user_annotation", "ProfilerStep#1", 300, 1700, thread=7)
    result = attribute(trace([step(1, 0, 1000), shadow, kernel(100, 200)]))
    assert [s.step_ns for s in result.steps] == [1_000_000]


def test_a_step_lasts_until_the_next_mark_but_not_over_a_pause_of_the_schedule() -> None:
    marks = [step(1, 0, 900), step(2, 1000, 1900), step(7, 5000, 6000)]
    result = attribute(trace([*marks, operator(0, 10)]))
    assert [(s.number, s.step_ns) for s in result.steps] == [
        (1, 1_000_000),
        (2, 900_000),
        (7, 1_000_000),
    ]


def test_the_steps_asked_for_are_taken() -> None:
    recorded = trace([step(n, n * 10, n * 10 + 10) for n in range(4)])
    assert [s.number for s in attribute(recorded, steps=(1, 3)).steps] == [1, 3]
    with pytest.raises(ProfileError, match="the trace has 0, 1, 2, 3"):
        attribute(recorded, steps=(17,))


def test_staging_of_pageable_memory_counts_and_its_operator_with_it() -> None:
    events = [step(1, 0, 1000), kernel(0, 50), operator(100, 700, "aten::to")]
    events += [operator(110, 690, "aten::copy_"), call("cudaMemcpyAsync", 150, 680, 3)]
    events += [copy_in(500, 650, 3), operator(800, 900, "aten::to")]
    result = attribute(trace(events))
    assert ms(result) == {"compute": 0.05, "h2d": 0.6, "gap": 0.35}


def test_a_copy_under_a_kernel_is_overlapped() -> None:
    events = [step(1, 0, 1000), kernel(100, 400), copy_in(300, 600, 1), collective(350, 500)]
    one = attribute(trace(events)).steps[0]
    assert one.ns[Category.H2D] == 100_000
    assert one.h2d_overlapped_ns == 200_000
    assert one.comm_overlapped_ns == 50_000


def test_only_a_call_that_waited_for_the_device_opens_a_sync_gap() -> None:
    waited = [kernel(100, 300), call("cudaStreamSynchronize", 200, 310), kernel(400, 500)]
    idle_anyway = [call("cudaStreamSynchronize", 600, 610), kernel(700, 800)]
    result = attribute(trace([step(1, 0, 1000), *waited, *idle_anyway]))
    assert result.steps[0].gap_sync_ns == 100_000


def test_our_own_fetch_mark_inside_the_loaders_counts_once() -> None:
    ours = event("user_annotation", "aiak#fetch", 90, 510)
    one = attribute(trace([step(1, 0, 1000), kernel(0, 50), fetch(100, 500), ours])).steps[0]
    assert one.fetch_ns == one.ns[Category.DATA_WAIT] == 420_000


def update(start_us: float, end_us: float, name: str = "SGD") -> Event:
    return event("user_annotation", f"Optimizer.step#{name}.step", start_us, end_us)


def test_without_step_marks_an_update_ends_a_step() -> None:
    updates = [update(n * 100 + 80, n * 100 + 90) for n in range(4)]
    result = attribute(trace([*updates, kernel(0, 350)]))
    assert [s.step_ns for s in result.steps] == [100_000] * 3
    assert "no_step_marks" in codes(result)


def test_the_last_optimizer_of_a_period_ends_the_step() -> None:
    updates = [update(n * 100, n * 100 + 9, "Adam" if n % 2 else "SGD") for n in range(6)]
    assert [s.step_ns for s in attribute(trace(updates)).steps] == [200_000] * 2


def test_one_mark_over_a_whole_loop_is_no_step() -> None:
    updates = [update(n * 100 + 80, n * 100 + 90) for n in range(32)]
    result = attribute(trace([step(0, 0, 3300), *updates]))
    assert len(result.steps) == 31
    assert "no_step_marks" in codes(result)


def test_without_updates_a_fetch_begins_a_step_and_else_the_trace_is_one() -> None:
    fetches = [fetch(0, 10), fetch(100, 110), operator(120, 200)]
    assert [s.step_ns for s in attribute(trace(fetches)).steps] == [100_000, 100_000]
    assert [s.step_ns for s in attribute(trace([operator(120, 200)])).steps] == [80_000]


def test_missing_signals_are_said() -> None:
    launched = [step(1, 0, 100), operator(0, 50), call("cudaLaunchKernel", 10, 20)]
    assert codes(attribute(trace(launched))) == {"no_device_events", "no_fetch_marks"}
    nccl = event("user_annotation", "nccl:all_reduce", 1, 2)
    assert "no_device_events" in codes(attribute(trace([step(1, 0, 100), operator(0, 5), nccl])))
    alone = attribute(trace([kernel(0, 50), kernel(60, 100)]))
    wanted = {"no_step_marks", "no_runtime_calls", "no_host_events", "no_fetch_marks"}
    assert codes(alone) == wanted
    assert alone.device == "gpu"
    assert alone.mean.gap_sync_ns is None


def test_a_share_of_matmul_is_unknown_without_kernels_and_operators() -> None:
    assert attribute(trace([step(1, 0, 100)])).mean.matmul_share is None
    gemm = [step(1, 0, 100), kernel(0, 25, "sm90_xmma_gemm_f32"), kernel(30, 40)]
    assert attribute(trace(gemm)).mean.matmul_share == 0.25
    operators = [step(1, 0, 100), operator(0, 50, "aten::linear"), operator(5, 45, "aten::addmm")]
    assert attribute(trace(operators)).mean.matmul_share == 0.5


def test_a_kernel_is_a_matmul_by_the_operator_that_issued_it() -> None:
    issuer = event("cpu_op", "aten::cudnn_convolution", 0, 5, **{"External id": 3})
    layout = event("kernel", "nchwToNhwcKernel", 10, 30, thread=7, **{"External id": 3})
    mean = attribute(trace([step(1, 0, 100), issuer, layout])).mean
    assert mean.matmul_share == mean.convolution_share == 0.2


def test_convolutions_are_told_from_matrix_products() -> None:
    kernels = [
        kernel(0, 10, "sm90_xmma_fprop_implicit_gemm_f32f32"),
        kernel(20, 25, "void cudnn::winograd_nonfused::winogradForwardData4x4"),
        kernel(30, 50, "sm80_xmma_gemm_f32f32_tn"),
        kernel(50, 60, "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16"),
        kernel(70, 75, "vectorized_elementwise_kernel"),
    ]
    mean = attribute(trace([step(1, 0, 100), *kernels])).mean
    assert mean.matmul_share == 0.45 and mean.convolution_share == 0.15
    backward = [operator(0, 30, "aten::convolution_backward"), operator(40, 60, "aten::mm")]
    mean = attribute(trace([step(1, 0, 100), *backward])).mean
    assert mean.matmul_share == 0.5 and mean.convolution_share == 0.3


def test_hot_spots_are_kernels_or_the_operators_own_time() -> None:
    kernels = [step(1, 0, 100), kernel(0, 10, "a"), kernel(20, 50, "b"), kernel(60, 70, "a")]
    top = attribute(trace([*kernels, kernel(200, 900, "outside")])).top
    assert [(t.name, t.total_ns, t.count) for t in top] == [("b", 30_000, 1), ("a", 20_000, 2)]
    nested = [step(1, 0, 100), operator(0, 50, "outer"), operator(10, 40, "inner"), fetch(60, 90)]
    top = attribute(trace([*nested, operator(65, 80, "in the loader")])).top
    assert [(t.name, t.total_ns) for t in top] == [("inner", 30_000), ("outer", 20_000)]


def test_the_mean_is_over_steps() -> None:
    result = attribute(trace([step(1, 0, 100), step(2, 100, 400), kernel(0, 50)]))
    assert result.mean.step_ns == 200_000
    assert result.mean.share(Category.COMPUTE) == 0.125
    assert sum(result.mean.ns.values()) == pytest.approx(result.mean.step_ns)
    assert replace(result, top=()).steps == result.steps
