"""Error rate, power and cost of the confirmation, simulated; prints rows for docs/results.

    python benchmarks/bench_sequential.py [--races 20000] [--max-pairs 8]

Runs are samples per second whose logarithm has the noise named, relative to the median run. A
race is judged by the product's own `judge`, pair by pair, as the tuning does it.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from aiak_tune.selector.sequential import judge, order

Floats = NDArray[np.float64]
# (generator, races, runs) -> (races, runs): log noise of runs in the order they are started.
Noise = Callable[[np.random.Generator, int, int], Floats]


def normal(rng: np.random.Generator, races: int, runs: int, *, sd: float) -> Floats:
    return rng.normal(0, sd, (races, runs))


def heavy(rng: np.random.Generator, races: int, runs: int, *, sd: float) -> Floats:
    """Student's t with 3 degrees of freedom, scaled to the standard deviation."""
    return rng.standard_t(3, (races, runs)) * sd / math.sqrt(3)


def slow_tail(rng: np.random.Generator, races: int, runs: int, *, sd: float) -> Floats:
    """Runs are only ever disturbed to the slow side."""
    return -rng.exponential(sd, (races, runs))


def bimodal(
    rng: np.random.Generator, races: int, runs: int, *, apart: float, share: float = 0.5
) -> Floats:
    """A coin for each process says whether it is slow; else 0.3% of noise."""
    slow = rng.random((races, runs)) < share
    return rng.normal(0, 0.003, (races, runs)) - apart * slow


def drift(rng: np.random.Generator, races: int, runs: int, *, whole: float) -> Floats:
    """The machine slows down steadily by `whole` over the race; 1% of noise."""
    return rng.normal(0, 0.01, (races, runs)) - np.linspace(0, whole, runs)


def wander(rng: np.random.Generator, races: int, runs: int, *, sd: float) -> Floats:
    """A random walk of `sd` a run; 1% of noise."""
    walk = np.cumsum(rng.normal(0, sd, (races, runs)), axis=1)
    return rng.normal(0, 0.01, (races, runs)) + walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What came of many races."""

    races: int
    faster: int
    covered: float
    mean_pairs: float
    faster_by: dict[int, float]

    @property
    def share(self) -> float:
        return self.faster / self.races

    def interval(self) -> tuple[float, float]:
        """95% interval of the share (Wilson)."""
        z, n, p = 1.96, self.races, self.share
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return middle - half, middle + half


def simulate(
    noise: Noise, gain: float, *, races: int, seed: int, max_pairs: int = 8, lucky_of: int = 1
) -> Rates:
    """Race settings of true speed-up `gain`; picked as the best of `lucky_of` trials before."""
    rng = np.random.default_rng(seed)
    trials = noise(rng, races, lucky_of).max(axis=1)  # spent: the race takes fresh runs
    logs = noise(rng, races, 2 * max_pairs)
    assert trials.shape == (races,)
    stops: Counter[int] = Counter()
    covered = pairs = 0
    for row in logs:
        done, inside, called = race(row, gain, max_pairs)
        pairs += done
        covered += inside
        stops[done] += called
    total = np.cumsum([stops[n] for n in range(max_pairs + 1)]) / races
    return Rates(
        races=races, faster=sum(stops.values()), covered=covered / races,
        mean_pairs=pairs / races, faster_by={n: float(total[n]) for n in range(3, max_pairs + 1)},
    )  # fmt: skip


def race(row: Floats, gain: float, max_pairs: int) -> tuple[int, bool, bool]:
    sides: dict[str, list[float]] = {"baseline": [], "candidate": []}
    runs = iter(np.exp(row))
    for pair in range(max_pairs):
        for side in order(pair):
            sides[side].append(float(next(runs)) * (gain if side == "candidate" else 1.0))
        if pair < 2:
            continue
        seen = judge(sides["baseline"], sides["candidate"], max_pairs=max_pairs)
        if seen.decision != "continue":
            break
    assert seen.ci95 is not None
    return pair + 1, seen.ci95[0] <= gain <= seen.ci95[1], seen.decision == "faster"


NULLS: dict[str, Noise] = {
    **{f"normal_{sd:.1%}": partial(normal, sd=sd) for sd in (0.002, 0.02, 0.08)},
    "heavy_2%": partial(heavy, sd=0.02),
    "slow_tail_3%": partial(slow_tail, sd=0.03),
    **{f"bimodal_{a:.0%}": partial(bimodal, apart=a) for a in (0.03, 0.06, 0.1)},
    "bimodal_10%_rare": partial(bimodal, apart=0.1, share=0.2),
    "drift_10%": partial(drift, whole=0.1),
    "wander_1%": partial(wander, sd=0.01),
}
GAINS: tuple[tuple[float, str, Noise], ...] = (
    (1.05, "normal_2%", partial(normal, sd=0.02)),
    (1.05, "normal_2%_of_the_ratio", partial(normal, sd=0.02 / math.sqrt(2))),
    (1.05, "normal_1%", partial(normal, sd=0.01)),
    (1.10, "normal_2%", partial(normal, sd=0.02)),
    (1.30, "normal_3%", partial(normal, sd=0.03)),
    (1.05, "heavy_2%", partial(heavy, sd=0.02)),
    (1.05, "drift_5%", partial(drift, whole=0.05)),
    (1.02, "normal_0.2%", partial(normal, sd=0.002)),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--races", type=int, default=20_000)
    parser.add_argument("--max-pairs", type=int, default=8)
    args = parser.parse_args()
    cases = [(g, n, f) for n, f in NULLS.items() for g in (1.0, 1.01)] + list(GAINS)
    for gain, name, noise in cases:
        rates = simulate(
            noise, gain, races=args.races, seed=1, max_pairs=args.max_pairs, lucky_of=6
        )
        low, high = rates.interval()
        row = {
            "name": f"{name}_at_{gain:.2f}", "faster": rates.share, "low": low, "high": high,
            "covered": rates.covered, "mean_pairs": round(rates.mean_pairs, 2),
            "by": {n: round(v, 4) for n, v in rates.faster_by.items()}, "races": rates.races,
        }  # fmt: skip
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
