"""Quantiles that the confirmation needs: looks, Student's t, ranks.

docs/decisions/0002-sequential-test.md says how they are put together.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np

NORMAL = NormalDist()
# Share of alpha for the first look; the rest follows the square of the way to the last one.
FIRST_SHARE = 0.22
# Levels come from known variance; with t quantiles in their place the error is 1.07 times theirs.
SMALL_SAMPLE = 0.92


@lru_cache(maxsize=64)
def look_levels(alpha: float, first: int, last: int) -> tuple[float, ...]:
    """One-sided nominal level of each look, `first` to `last` pairs, that together spend alpha.

    Source:
        Armitage, McPherson, Rowe (1969), J. R. Stat. Soc. A 132: density of the sum that has
        crossed no boundary yet, carried from look to look; Lan, DeMets (1983), Biometrika 70:
        spending function; Pocock (1977), Biometrika 64: the levels with t quantiles.
    """
    width = 1 / 64
    reach = 8 * math.sqrt(last)
    grid = np.arange(-reach, reach, width)
    step = np.exp(-(np.arange(-8, 8 + width, width) ** 2) / 2) / math.sqrt(2 * math.pi) * width
    alive = np.exp(-(grid**2) / (2 * first)) / math.sqrt(2 * math.pi * first) * width
    levels: list[float] = []
    spent = 0.0
    for pairs in range(first, last + 1):
        way = (pairs - first) / (last - first) if last > first else 1.0
        due = SMALL_SAMPLE * alpha * (FIRST_SHARE + (1 - FIRST_SHARE) * way**2)
        above = np.cumsum(alive[::-1])[::-1]
        # `above` is the mass from the middle of a cell on; interpolated where it is what is due.
        edge = float(np.interp(spent - due, -above, grid - width / 2))
        spent = due
        levels.append(1 - NORMAL.cdf(edge / math.sqrt(pairs)))
        alive = np.convolve(np.where(grid < edge, alive, 0.0), step, mode="same")
    return tuple(levels)


def t_cdf(t: float, freedom: int) -> float:
    """Student's distribution function for whole degrees of freedom, as a finite sum.

    Source:
        Abramowitz, Stegun (1964), 26.7.3 and 26.7.4.
    """
    angle = math.atan2(t, math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(2 if odd else 1, freedom, 2):
        total += term
        term *= square * k / (k + 1)
    half = (angle + math.sin(angle) * total) / math.pi if odd else math.sin(angle) * total / 2
    return 0.5 + half


@lru_cache(maxsize=1024)
def t_quantile(p: float, freedom: int) -> float:
    """Return the t below which Student's distribution has `p`; by bisection.

    Raises:
        ValueError: p is not inside 0 to 1, or there are no degrees of freedom.
    """
    if not 0 < p < 1 or freedom < 1:
        raise ValueError(f"no quantile of Student's t at p = {p} with {freedom} degrees of freedom")
    high = 1.0
    while t_cdf(high, freedom) < max(p, 1 - p):
        high *= 2
    return _root(lambda t: t_cdf(t, freedom) - p, -high, high)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    while high - low > 1e-12 * max(1.0, abs(low)):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2


def rank_level(low: Sequence[float], high: Sequence[float]) -> float:
    """Exact one-sided level of the rank-sum test that `high` lies above `low`.

    Ties count half and are rounded against it.

    Source:
        Mann, Whitney (1947), Ann. Math. Stat. 18: recursion for the number of orders.
    """
    beaten = sum((a > b) + 0.5 * (a == b) for a in low for b in high)
    ways = _rank_ways(len(low), len(high))
    return sum(ways[: math.ceil(beaten) + 1]) / sum(ways)


@lru_cache(maxsize=64)
def _rank_ways(a: int, b: int) -> tuple[int, ...]:
    """Number of orders of a + b runs with 0, 1, 2 … pairs the wrong way round."""
    if not a or not b:
        return (1,)
    ways = [0] * (a * b + 1)
    for shift, fewer in ((b, _rank_ways(a - 1, b)), (0, _rank_ways(a, b - 1))):
        for wrong, count in enumerate(fewer):
            ways[wrong + shift] += count
    return tuple(ways)
