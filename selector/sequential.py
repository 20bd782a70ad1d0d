"""The confirmation: is the candidate really faster than the baseline, and by how much?

Baseline and candidate run alternately in fresh processes, a pair at a time; after each pair
`judge` says to stop or to go on. All its looks together call settings that are no faster than
`margin` "faster" with a chance of at most `alpha`. docs/decisions/0002-sequential-test.md has
the derivation, the sources and the simulated error rates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from aiak_tune.selector.quantiles import NORMAL, look_levels, rank_level, t_cdf, t_quantile

Side = Literal["baseline", "candidate"]
Outcome = Literal["faster", "not_faster", "continue"]
MIN_PAIRS = 3
# The runs must also fall apart by rank at this share of alpha (or, where so few pairs cannot reach
# it, without a single overlap): two-valued noise makes Student's t too sure of itself.
RANK_SHARE = 0.8
# Give up when the last look would say faster with a chance below this.
HOPELESS = 0.02
POWER = 0.90
# Runs of two speeds, chosen by a coin, fall apart by chance once in 64 at 3 pairs and once in 256
# at 4: until 5 a small spread proves nothing, and the gain must clear a higher floor.
FLOOR_FACTOR = {3: 5.0, 4: 5.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One look at the confirmation.

    `speedup` is the ratio of geometric means. `ci95` holds over all looks together, so stopping
    when it looks good does not narrow it. `smallest_visible_gain` is the true ratio that this
    many pairs (`max_pairs` of them when it was given up) find at this noise with 90% power.
    Both are None below `min_pairs`.
    """

    decision: Outcome
    speedup: float
    ci95: tuple[float, float] | None
    smallest_visible_gain: float | None
    pairs: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """Log speed-up after `pairs` pairs.

    `spread` is the noise of one run as seen, relative; `apart` the level at which the rank-sum
    test says that the candidate is more than the margin above the baseline.
    """

    pairs: int
    gain: float
    spread: float
    apart: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Race:
    """The limits that were stated before it began; `margin` is a logarithm."""

    margin: float
    alpha: float
    first: int
    last: int
    floor: float

    def error(self, seen: _Evidence, pairs: int) -> float:
        """Return the standard error of the log speed-up after `pairs` pairs of the noise seen."""
        return max(seen.spread, self.floor) * math.sqrt(2 / pairs)

    def bound(self, pairs: int, alpha: float) -> float:
        """Return how many standard errors lie between the gain and its bound at this look."""
        level = look_levels(alpha, self.first, self.last)[pairs - self.first]
        return t_quantile(1 - level, 2 * pairs - 2)

    def reach(self, seen: _Evidence, alpha: float) -> float:
        """Return the distance of the log speed-up's bound at the look now."""
        return self.bound(seen.pairs, alpha) * self.error(seen, seen.pairs)

    def least(self, pairs: int) -> float:
        """Return the log speed-up below which this look never says faster."""
        sigma = self.floor * FLOOR_FACTOR.get(pairs, 1.0)
        return self.margin + self.bound(pairs, self.alpha) * sigma * math.sqrt(2 / pairs)


def order(pair: int) -> tuple[Side, Side]:
    """Return who runs first in pair 0, 1, 2 …: AB BA AB, so that a drift favours neither."""
    return ("candidate", "baseline") if pair % 2 else ("baseline", "candidate")


def judge(
    baseline: Sequence[float],
    candidate: Sequence[float],
    *,
    margin: float = 1.01,
    alpha: float = 0.005,
    min_pairs: int = MIN_PAIRS,
    max_pairs: int = 8,
    noise_floor: float = 0.005,
) -> Decision:
    """Judge the pairs so far; call after each one, and stop when told.

    Args:
        baseline: (runs,), samples per second of the job as written; only whole pairs count.
        candidate: (runs,), the same of the settings to confirm.
        margin: the speed-up that has to be beaten.
        alpha: one-sided chance, over all looks, to call a speed-up of `margin` or less faster.
        min_pairs: first look, at least 3.
        max_pairs: last look; its decision is never "continue".
        noise_floor: relative standard deviation of one run that is taken for granted, so that
            runs equal by accident prove nothing.

    Raises:
        ValueError: no whole pair, a throughput that is not positive, impossible limits.
    """
    if not MIN_PAIRS <= min_pairs <= max_pairs or not 0 < alpha < 0.5 or noise_floor <= 0:
        raise ValueError(f"impossible limits: {min_pairs} to {max_pairs} pairs, alpha {alpha}")
    race = _Race(
        margin=math.log(margin), alpha=alpha, first=min_pairs, last=max_pairs, floor=noise_floor
    )
    seen = _evidence(baseline, candidate, race)
    if seen.pairs < min_pairs:
        return Decision(
            decision="continue", speedup=math.exp(seen.gain), ci95=None,
            smallest_visible_gain=None, pairs=seen.pairs,
            reason=f"{seen.pairs} of at least {min_pairs} pairs",
        )  # fmt: skip
    decision, reason = _decide(seen, race)
    reach = race.reach(seen, 0.025)
    return Decision(
        decision=decision,
        speedup=math.exp(seen.gain),
        ci95=(math.exp(seen.gain - reach), math.exp(seen.gain + reach)),
        # Given up early: what counts is what the whole race would have found.
        smallest_visible_gain=_visible(
            seen, race, max_pairs if decision == "not_faster" else seen.pairs
        ),
        pairs=seen.pairs,
        reason=reason,
    )


def _decide(seen: _Evidence, race: _Race) -> tuple[Outcome, str]:
    reach = race.reach(seen, race.alpha)
    low, high, bar = (math.exp(x) for x in (seen.gain - reach, seen.gain + reach, race.margin))
    said = f"{math.exp(seen.gain):.3f} times as fast over {seen.pairs} pairs"
    furthest = 1 / math.comb(2 * seen.pairs, seen.pairs)
    apart = seen.apart <= max(RANK_SHARE * race.alpha, furthest)
    if low > bar and apart and seen.gain > race.least(seen.pairs):
        return "faster", f"{said}, so more than {low:.3f} times; {_sure(race)}"
    if high < bar:
        return "not_faster", f"{said}, so less than {bar:.3g} times; {_sure(race)}"
    if seen.pairs == race.last:
        return "not_faster", f"{said}: not clear of {bar:.3g} within {race.last} pairs"
    if _chance(seen, race) < HOPELESS:
        return "not_faster", f"{said}: {race.last} pairs would hardly show more than {bar:.3g}"
    return "continue", f"{said}: not yet clear of {bar:.3g}"


def _sure(race: _Race) -> str:
    return f"a test that is wrong at most {race.alpha:.1%} of the time"


def _evidence(baseline: Sequence[float], candidate: Sequence[float], race: _Race) -> _Evidence:
    """Take whole pairs only: logs, their mean difference, and the noise within the sides.

    The two sides' own spreads, not that of the pairs' ratios: twice the degrees of freedom, and
    what drifts through all runs makes it larger, never smaller.
    """
    pairs = min(len(baseline), len(candidate), race.last)
    sides = [side[:pairs] for side in (baseline, candidate)]
    bad = [value for side in sides for value in side if not 0 < value < math.inf]
    if bad or not pairs:
        raise ValueError(f"no throughput to judge: {bad[0]}" if bad else "no whole pair to judge")
    low, high = ([math.log(value) for value in side] for side in sides)
    means = math.fsum(low) / pairs, math.fsum(high) / pairs
    squares = math.fsum(
        (x - mean) ** 2 for side, mean in zip((low, high), means, strict=True) for x in side
    )
    return _Evidence(
        pairs=pairs,
        gain=means[1] - means[0],
        spread=math.sqrt(squares / max(2 * pairs - 2, 1)),
        apart=rank_level(low, [x - race.margin for x in high]),
    )


def _visible(seen: _Evidence, race: _Race, pairs: int) -> float:
    """Ratio found with 90% power by that many pairs: noncentral t, normal approximation."""
    bound, nu = race.bound(pairs, race.alpha), 2 * pairs - 2
    spread = math.sqrt(1 + bound**2 / (2 * nu))
    shift = bound * (1 - 1 / (4 * nu)) + NORMAL.inv_cdf(POWER) * spread
    return math.exp(max(race.margin + shift * race.error(seen, pairs), race.least(pairs)))


def _chance(seen: _Evidence, race: _Race) -> float:
    """Chance that the last look says faster, with every gain equally likely beforehand."""
    error = race.error(seen, race.last)
    needed = race.margin + race.bound(race.last, race.alpha) * error - seen.gain
    # error**2 * last is the variance of one pair.
    spread = error * math.sqrt(race.last / seen.pairs - 1)
    return 1 - t_cdf(needed / spread, 2 * seen.pairs - 2)
