import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from aiak_tune.selector.quantiles import look_levels, rank_level, t_cdf, t_quantile
from aiak_tune.selector.sequential import Decision, judge, order

Noise = Callable[[random.Random], float]


def race(rng: random.Random, gain: float, noise: Noise) -> Decision:
    sides: dict[str, list[float]] = {"baseline": [], "candidate": []}
    seen = None
    for pair in range(8):
        for side in order(pair):
            sides[side].append((gain if side == "candidate" else 1) * math.exp(noise(rng)))
        seen = judge(sides["baseline"], sides["candidate"])
        if seen.decision != "continue":
            return seen
    raise AssertionError("the last look went on")


def share_faster(gain: float, noise: Noise, *, races: int) -> float:
    rng = random.Random(1)
    return sum(race(rng, gain, noise).decision == "faster" for _ in range(races)) / races


def two_speeds(rng: random.Random) -> float:
    return rng.gauss(0, 0.003) - 0.06 * (rng.random() < 0.5)


NULLS: dict[str, Noise] = {
    "normal": lambda rng: rng.gauss(0, 0.02),
    "loud": lambda rng: rng.gauss(0, 0.08),
    "slow tail": lambda rng: -rng.expovariate(1 / 0.03),
    "two speeds": two_speeds,
}


@pytest.mark.parametrize("noise", NULLS.values(), ids=NULLS)
def test_a_gain_no_larger_than_the_margin_is_hardly_ever_called_faster(noise: Noise) -> None:
    # 0.5% and three standard errors of 2,500 races; benchmarks/bench_sequential.py has more.
    assert share_faster(1.01, noise, races=2500) <= 0.005 + 3 * math.sqrt(0.005 / 2500)


def test_the_best_of_many_lucky_trials_gets_no_advantage_from_them() -> None:
    noise = NULLS["normal"]
    rng = random.Random(2)
    called = 0
    for _ in range(1000):
        assert max(noise(rng) for _ in range(6)) > -1  # how it was picked; the race is fresh
        called += race(rng, 1.0, noise).decision == "faster"
    assert called <= 5


@pytest.mark.parametrize(
    ("gain", "noise", "power"), [(1.3, 0.03, 0.99), (1.10, 0.02, 0.99), (1.05, 0.014, 0.93)]
)
def test_real_gains_are_found_within_eight_pairs(gain: float, noise: float, power: float) -> None:
    assert share_faster(gain, lambda rng: rng.gauss(0, noise), races=400) >= power


def test_the_smallest_visible_gain_is_found_nine_times_in_ten() -> None:
    baseline = [100, 102, 98, 101, 99, 103, 97, 100]  # 2% of noise
    seen = judge(baseline, baseline)
    assert seen.decision == "not_faster"
    assert seen.smallest_visible_gain is not None
    assert 1.05 < seen.smallest_visible_gain < 1.08
    found = share_faster(seen.smallest_visible_gain, lambda r: r.gauss(0, 0.02), races=600)
    assert 0.85 < found < 0.97


def test_a_large_gain_is_decided_at_three_pairs() -> None:
    seen = judge([100, 101, 99], [130, 135, 128])
    assert (seen.decision, seen.pairs) == ("faster", 3)
    assert seen.ci95 is not None and seen.ci95[0] < seen.speedup < seen.ci95[1]
    assert seen.speedup == pytest.approx((130 * 135 * 128 / (100 * 101 * 99)) ** (1 / 3))


def test_runs_equal_by_accident_prove_no_small_gain() -> None:
    assert judge([100.0] * 3, [104.0] * 3).decision == "continue"
    assert judge([100.0] * 3, [110.0] * 3).decision == "continue"
    assert judge([100.0] * 5, [104.0] * 5).decision == "faster"


def test_a_slower_candidate_costs_three_pairs() -> None:
    seen = judge([100, 101, 99], [90, 91, 89])
    assert (seen.decision, seen.pairs) == ("not_faster", 3)
    assert "so less than 1.01 times; a test that is wrong at most 0.5%" in seen.reason


def test_a_hopeless_race_ends_early_and_says_what_it_would_have_found() -> None:
    seen = judge([100, 100.2, 99.8], [100, 99.9, 100.1])
    assert seen.decision == "not_faster"
    assert seen.smallest_visible_gain is not None and seen.smallest_visible_gain < 1.03


def test_below_three_pairs_it_goes_on_without_an_interval() -> None:
    seen = judge([100, 101, 99], [200, 201])
    assert (seen.decision, seen.pairs, seen.ci95) == ("continue", 2, None)


@pytest.mark.parametrize(
    ("baseline", "candidate", "limits"),
    [
        ([], [], {}),
        ([100, 0, 100], [100, 100, 100], {}),
        ([100, math.nan, 100], [100, 100, 100], {}),
        ([100] * 3, [100] * 3, {"min_pairs": 2}),
        ([100] * 3, [100] * 3, {"max_pairs": 2}),
        ([100] * 3, [100] * 3, {"alpha": 0}),
    ],
)
def test_nonsense_is_refused(
    baseline: Sequence[float], candidate: Sequence[float], limits: dict[str, Any]
) -> None:
    with pytest.raises(ValueError):
        judge(baseline, candidate, **limits)


throughputs = st.lists(st.floats(1, 1e6), min_size=3, max_size=8)


@given(baseline=throughputs, candidate=throughputs, unit=st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter_and_a_decision_fits_its_interval(
    baseline: list[float], candidate: list[float], unit: float
) -> None:
    seen = judge(baseline, candidate)
    again = judge([unit * x for x in baseline], [unit * x for x in candidate])
    assert again.speedup == pytest.approx(seen.speedup)
    assert seen.ci95 is not None and seen.ci95[0] <= seen.speedup <= seen.ci95[1]
    assert seen.decision != "faster" or seen.ci95[0] > 1.01
    assert seen.pairs < 8 or seen.decision != "continue"


def test_pairs_alternate_who_goes_first() -> None:
    assert [order(pair)[0] for pair in range(4)] == ["baseline", "candidate"] * 2


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 14, 40])
def test_student_t_agrees_with_scipy(freedom: int) -> None:
    for t in (-40, -3, -0.5, 0, 1e-3, 2.7, 15):
        assert t_cdf(t, freedom) == pytest.approx(stats.t.cdf(t, freedom), abs=1e-13)
    for p in (1e-5, 0.3, 0.5, 0.975, 0.9989, 0.99999):
        want = stats.t.ppf(p, freedom)
        assert t_quantile(p, freedom) == pytest.approx(want, rel=1e-9, abs=1e-11)


def test_one_look_spends_everything_and_more_looks_never_more() -> None:
    assert look_levels(0.005, 5, 5) == pytest.approx([0.92 * 0.005], rel=1e-4)
    levels = look_levels(0.005, 3, 8)
    assert max(levels) < 0.92 * 0.005 < sum(levels)  # overlapping chances are not paid twice


def test_the_rank_test_agrees_with_scipy() -> None:
    for low, high in (([1, 2, 3], [4, 5, 6]), ([1, 2, 3, 7], [4, 5, 6, 8]), ([3, 9], [1, 4])):
        want = stats.mannwhitneyu(high, low, alternative="greater", method="exact").pvalue
        assert rank_level(low, high) == pytest.approx(want)
    assert rank_level([1, 1], [1, 1]) > 0.5
