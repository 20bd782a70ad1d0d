"""The search: which settings to try next. The only module that imports Optuna.

The store's trials are the truth: a study is rebuilt from them by `replay`, and asked settings are
no state of their own. The order is DESIGN.md section 6: everything that fits, past plans, steps
from the best so far, then Optuna's TPE.
"""

import logging
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import optuna

from aiak_tune.optimizations.base import Params, Scalar, Settings

# Hashable settings: sorted ((optimization, ((parameter, value), …)), …).
Key = frozenset[tuple[str, tuple[tuple[str, Scalar], ...]]]
TPE_ATTEMPTS = 8
logging.getLogger("optuna").setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTrial:
    """A finished trial for the search: its value in samples per second, None when it had none."""

    settings: Settings
    value: float | None
    failed: bool = False


class Study:
    """One search; `ask`, run it, `tell`, until `ask` returns None.

    Args:
        space: for each optimization that fits, the most promising first, its parameters' values,
            the best guess first.
        conflicts: optimizations that never share a trial.
        seed: of the sampler.
        seeds: settings of past plans, tried after everything that fits.
    """

    def __init__(
        self,
        space: Mapping[str, Mapping[str, tuple[Scalar, ...]]],
        conflicts: Mapping[str, frozenset[str]],
        seed: int,
        *,
        seeds: Iterable[Settings] = (),
    ) -> None:
        self._space = space
        self._conflicts = {
            name: conflicts.get(name, frozenset())
            | {o for o in space if name in conflicts.get(o, ())}
            for name in space
        }
        self._seeds = tuple(seeds)
        self._seen: set[Key] = {_key({})}
        self._failed: set[Key] = set()
        self._values: dict[Key, float] = {}
        self._optuna = optuna.create_study(direction="maximize", sampler=_sampler(seed))

    def ask(self) -> Settings | None:
        """Return settings never asked or told before, or None when the space is used up."""
        for settings in self._candidates():
            key = _key(settings)
            if key not in self._seen and self._fits(settings) and not self._blamed(key):
                self._seen.add(key)
                return settings
        return None

    def tell(self, settings: Settings, value: float | None, failed: bool = False) -> None:
        """Record a finished trial; what contains settings that failed is not asked any more."""
        key = _key(settings)
        self._seen.add(key)
        if failed:
            # A failed baseline is the caller's affair: it is part of every settings.
            self._failed |= {key} if key else set()
        elif value is not None and 0 < value < math.inf:
            self._values[key] = value
            if self._fits(settings):
                self._optuna.add_trial(self._frozen(settings, value))

    def replay(self, trials: Iterable[StudyTrial]) -> None:
        """Take finished trials from the store, in order; none of them is asked again."""
        for trial in trials:
            self.tell(trial.settings, trial.value, trial.failed)

    def _candidates(self) -> Iterator[Settings]:
        everything = self._compatible(self._space)
        yield everything
        yield from self._seeds
        yield from self._without_culprits(everything)
        best = max(self._values, key=lambda key: self._values[key], default=_key({}))
        steps = self._steps(self._settings(best))
        yield from sorted(steps, key=lambda step: -self._gain(best, _key(step)))
        for _ in range(TPE_ATTEMPTS):
            yield self._sample()
        yield from self._all(tuple(self._space), {})

    def _compatible(self, names: Iterable[str], start: Settings | None = None) -> Settings:
        """Add to `start` each optimization that conflicts with none before it, at first values."""
        chosen = dict(start or {})
        for name in names:
            if name not in chosen and not self._conflicts[name] & chosen.keys():
                chosen[name] = {p: values[0] for p, values in self._space[name].items()}
        return chosen

    def _without_culprits(self, settings: Settings) -> Iterator[Settings]:
        """Find by bisection what makes `settings` fail; then all the others, until that runs.

        Asked are its first few entries, more or fewer of them: each that runs is a good trial too.
        """
        while _key(settings) in self._failed:
            names = list(settings)
            runs, fails = 0, len(names)
            while fails - runs > 1:
                middle = (runs + fails) // 2
                part = {name: settings[name] for name in names[:middle]}
                yield part
                if self._blamed(_key(part)):
                    fails = middle
                elif _key(part) in self._values:
                    runs = middle
                else:  # asked, not told yet
                    return
            settings = {n: p for n, p in settings.items() if n != names[fails - 1]}
            yield settings

    def _steps(self, best: Settings) -> Iterator[Settings]:
        """One change of the best so far: one in, one in for its rivals, one out, one value."""
        for name in self._space:
            if name not in best and not self._conflicts[name] & best.keys():
                yield self._compatible([name], best)
        for name in self._space:
            if name not in best and self._conflicts[name] & best.keys():
                kept = {o: p for o, p in best.items() if o not in self._conflicts[name]}
                yield self._compatible([name], kept)
        for name in reversed(list(best)):
            yield {other: params for other, params in best.items() if other != name}
        for name, params in best.items():
            for parameter, values in self._space.get(name, {}).items():
                for value in values:
                    yield {**best, name: {**params, parameter: value}}

    def _gain(self, start: Key, end: Key) -> float:
        """Mean log gain of the same change where it, or its way back, was tried; else 0.

        So what lost in one place is not the first thing tried again in the next.
        """
        change = start - end, end - start
        gains = [
            math.log(after / before)
            for a, before in self._values.items()
            for b, after in self._values.items()
            if (a - b, b - a) == change
        ]
        return math.fsum(gains) / len(gains) if gains else 0.0

    def _sample(self) -> Settings:
        trial = self._optuna.ask()
        chosen: dict[str, Params] = {}
        for name, space in self._space.items():
            if trial.suggest_categorical(name, (False, True)):
                picked = {p: trial.suggest_categorical(f"{name}.{p}", space[p]) for p in space}
                chosen[name] = {p: value for p, value in picked.items() if value is not None}
        # What is run comes back by `tell`; a failed trial tells the sampler nothing.
        self._optuna.tell(trial, state=optuna.trial.TrialState.FAIL)
        return chosen

    def _all(self, names: tuple[str, ...], chosen: Settings) -> Iterator[Settings]:
        """Each admissible settings of the space; blamed branches are cut off whole."""
        if self._blamed(_key(chosen)):
            return
        if not names:
            yield chosen
            return
        name, rest = names[0], names[1:]
        yield from self._all(rest, chosen)
        if not self._conflicts[name] & chosen.keys():
            for params in _grid(self._space[name]):
                yield from self._all(rest, {**chosen, name: params})

    def _fits(self, settings: Settings) -> bool:
        """Whether the settings lie in the space (those of a past plan may not)."""
        return all(
            name in self._space
            and not self._conflicts[name] & settings.keys()
            and params.keys() == self._space[name].keys()
            and all(value in self._space[name][p] for p, value in params.items())
            for name, params in settings.items()
        )

    def _settings(self, key: Key) -> Settings:
        """Undo `_key`, in the order of the space: a set's own differs between processes."""
        chosen = dict(key)
        return {name: dict(chosen[name]) for name in (*self._space, *chosen) if name in chosen}

    def _blamed(self, key: Key) -> bool:
        """Whether something that failed is part of it."""
        return any(failed <= key for failed in self._failed)

    def _frozen(self, settings: Settings, value: float) -> optuna.trial.FrozenTrial:
        params: dict[str, Scalar] = {}
        choices: dict[str, optuna.distributions.BaseDistribution] = {}
        for name, space in self._space.items():
            params[name] = name in settings
            choices[name] = optuna.distributions.CategoricalDistribution((False, True))
            for parameter, given in settings.get(name, {}).items():
                params[f"{name}.{parameter}"] = given
                choices[f"{name}.{parameter}"] = optuna.distributions.CategoricalDistribution(
                    space[parameter]
                )
        return optuna.trial.create_trial(params=params, distributions=choices, value=value)


def _sampler(seed: int) -> optuna.samplers.BaseSampler:
    """TPE from the first call on: its 10 random start-up trials would be the whole budget."""
    with warnings.catch_warnings():
        # `group`, for parameters that exist only with their optimization, is "experimental".
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(
            multivariate=True, group=True, n_startup_trials=0, constant_liar=False, seed=seed
        )


def _grid(space: Mapping[str, tuple[Scalar, ...]]) -> Iterator[Params]:
    if not space:
        yield {}
        return
    *others, last = space
    for params in _grid({name: space[name] for name in others}):
        for value in space[last]:
            yield {**params, last: value}


def _key(settings: Settings) -> Key:
    return frozenset((name, tuple(sorted(params.items()))) for name, params in settings.items())
