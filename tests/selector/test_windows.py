import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiak_tune.selector.windows import clearly_slower, summary, throughput_ci95

LOOKS = (8, 10, 12, 16, 20)


def noisy(rng: random.Random, level: float, spread: float, steps: int = 20) -> list[float]:
    return [level * rng.lognormvariate(0, spread) for _ in range(steps)]


def wandering(rng: random.Random, level: float, spread: float) -> list[float]:
    """Each step remembers the last one (correlation 0.9)."""
    state, steps = rng.gauss(0, spread), []
    for _ in range(20):
        state = 0.9 * state + rng.gauss(0, spread * 0.19**0.5)
        steps.append(level * 2.718281828**state)
    return steps


def stopped(candidate: list[float], best: list[float]) -> bool:
    return any(clearly_slower(candidate[:seen], best) for seen in LOOKS)


@pytest.mark.parametrize(("make", "level"), [(noisy, 100), (noisy, 110), (wandering, 100)])
def test_what_is_not_much_slower_is_never_stopped(
    make: Callable[[random.Random, float, float], list[float]], level: float
) -> None:
    rng = random.Random(0)
    lost = sum(stopped(make(rng, level, 0.05), make(rng, 100, 0.05)) for _ in range(1000))
    assert lost <= 1


def test_a_clear_loser_is_stopped_soon() -> None:
    rng = random.Random(0)
    lost = sum(clearly_slower(noisy(rng, 140, 0.03, 8), noisy(rng, 100, 0.03)) for _ in range(200))
    assert lost > 150


def test_seven_steps_stop_nothing() -> None:
    assert not clearly_slower([1000.0] * 7, [100.0] * 20)
    assert clearly_slower([1000.0] * 8, [100.0] * 20)


def test_a_winner_with_a_slow_start_runs_on() -> None:
    slow_start = [300.0] * 5 + [80.0] * 15
    assert not stopped(slow_start, [100.0] * 20)
    getting_faster = [300 * 0.93**i for i in range(20)]
    assert not stopped(getting_faster, [100.0] * 20)


def test_stalls_count_for_the_best_and_not_against_the_candidate() -> None:
    stalling = [30.0, 30.0, 30.0, 150.0] * 5  # 60 ms on average
    assert not stopped([55.0] * 20, stalling)
    assert not stopped(stalling, [60.0] * 20)
    mostly_slow = [100.0, 100.0, 20.0] * 7  # 73 ms on average, median 100
    assert not stopped(mostly_slow, [75.0] * 20)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_the_summary_agrees_with_numpy(step_ms: list[float]) -> None:
    got = summary(step_ms)
    assert got.mean == pytest.approx(np.mean(step_ms))
    assert [got.p05, got.median, got.p95] == pytest.approx(
        np.percentile(step_ms, [5, 50, 95]).tolist()
    )


def test_the_interval_of_throughput_covers_the_truth_with_stalls_and_memory() -> None:
    rng = random.Random(0)
    inside = {1: 0, 4: 0}
    for _ in range(600):
        plain = noisy(rng, 100, 0.1, 41)
        stalls = [x + (300 if i % 4 == 0 else 0) for i, x in enumerate(plain)]
        for period, steps, mean in ((1, plain, 100.5), (4, stalls, 175.5)):
            interval = throughput_ci95(steps, 64, period=period)
            assert interval is not None
            inside[period] += interval[0] <= 64e3 / mean <= interval[1]
    assert inside[1] > 0.92 * 600
    assert inside[4] > 0.92 * 600


def test_too_few_steps_have_no_interval() -> None:
    assert throughput_ci95([10.0], 64) is None
    assert throughput_ci95([10.0] * 7, 64, period=4) is None
    assert throughput_ci95([10.0] * 8, 64, period=4) == pytest.approx((6400, 6400))


@pytest.mark.parametrize("steps", [[], [1.0, -1.0], [float("nan")], [float("inf")]])
def test_times_that_are_none_are_refused(steps: list[float]) -> None:
    with pytest.raises(ValueError):
        summary(steps)
    with pytest.raises(ValueError):
        clearly_slower(steps, [1.0])
