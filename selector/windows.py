"""Statistics of one run's clean step times; when a trial that clearly loses is stopped early."""

import math
from collections.abc import Sequence
from statistics import fmean, median, quantiles, stdev

from aiak_tune.profiles.workload import StepMs
from aiak_tune.selector.quantiles import t_quantile

# Blocks of one window: enough degrees of freedom, and each longer than steps remember each other.
BLOCKS = 5
MIN_STEPS = 8
# A normal sample's standard deviation over its median absolute deviation.
MAD_SCALE = 1.4826
# A median's standard error over the mean's, and how many of them are beyond doubt.
MEDIAN_LOSS = 1.2533
DOUBT = 4.0
# Steps that still get faster are a slow start, not a slow trial.
SETTLED = 0.97


def summary(step_ms: Sequence[float]) -> StepMs:
    """Mean, median, 5th and 95th percentile of clean steps.

    Raises:
        ValueError: no step, or a time that is negative or not finite.
    """
    _check(step_ms)
    if len(step_ms) == 1:
        return StepMs(mean=step_ms[0], median=step_ms[0], p05=step_ms[0], p95=step_ms[0])
    cuts = quantiles(step_ms, n=20, method="inclusive")
    return StepMs(mean=fmean(step_ms), median=median(step_ms), p05=cuts[0], p95=cuts[-1])


def throughput_ci95(
    step_ms: Sequence[float], samples_per_step: float, *, period: int = 1
) -> tuple[float, float] | None:
    """95% interval of samples per second within one run, from means of blocks of steps.

    Steps remember their neighbours (queues, stalls every few steps), blocks hardly do. Noise from
    one process to the next is not in it: that is for `sequential`.

    Args:
        step_ms: (steps,), clean steps in order.
        samples_per_step: samples of one step over all ranks.
        period: steps after which stalls repeat (workers, accumulation); blocks are its multiples.

    Returns:
        (low, high), or None where fewer than two blocks fit.

    Source:
        Law, Kelton, "Simulation Modeling and Analysis", 9.5.3: batch means.
    """
    _check(step_ms)
    length = max(math.ceil(len(step_ms) / BLOCKS / period), 1) * period
    count = len(step_ms) // length
    if count < 2:
        return None
    # What does not fill a block is left out at the front, where a slow start would be.
    steps = step_ms[len(step_ms) - count * length :]
    means = [fmean(steps[at : at + length]) for at in range(0, len(steps), length)]
    middle = fmean(means)
    reach = t_quantile(0.975, count - 1) * stdev(means) / math.sqrt(count)
    # An interval of a time that reaches zero says nothing about the rate's upper end.
    fastest = max(middle - reach, min(steps))
    return samples_per_step * 1e3 / (middle + reach), samples_per_step * 1e3 / fastest


def clearly_slower(
    step_ms: Sequence[float], best_step_ms: Sequence[float], *, factor: float = 1.15
) -> bool:
    """Whether a running trial has lost: more than `factor` times the best's steps, beyond doubt.

    In doubt it runs on. The candidate gets the smaller of its mean and median, of all steps and of
    the later half, less four robust standard errors; the best gets the larger of its own, more as
    many. So a stall of a winner, a slow start, or steps still getting faster stop nothing.

    Args:
        step_ms: (steps,), the trial's clean steps so far, at equal samples a step.
        best_step_ms: (steps,), the best trial's.
        factor: how much slower is a clear loser.
    """
    _check(step_ms)
    _check(best_step_ms)
    if min(len(step_ms), len(best_step_ms)) < MIN_STEPS:
        return False
    half = len(step_ms) // 2
    early, late = step_ms[:half], step_ms[half:]
    if median(late) < SETTLED * median(early):
        return False
    low = min(min(fmean(part), median(part)) - DOUBT * _error(part) for part in (step_ms, late))
    high = max(fmean(best_step_ms), median(best_step_ms)) + DOUBT * _error(best_step_ms)
    return low > factor * high


def _error(step_ms: Sequence[float]) -> float:
    """Standard error of the median, from the median absolute deviation."""
    middle = median(step_ms)
    deviation = median([abs(x - middle) for x in step_ms])
    return MAD_SCALE * MEDIAN_LOSS * deviation / math.sqrt(len(step_ms))


def _check(step_ms: Sequence[float]) -> None:
    bad = [x for x in step_ms if not 0 <= x < math.inf]
    if bad or not step_ms:
        raise ValueError(f"not a step time: {bad[0]} ms" if bad else "no step to judge")
