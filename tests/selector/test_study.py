import itertools
import math
import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiak_tune.optimizations.base import Scalar, Settings
from aiak_tune.selector.study import Study, StudyTrial

Space = Mapping[str, Mapping[str, tuple[Scalar, ...]]]
Table = Callable[[Settings], float | None]
SPACE: Space = {
    "workers": {"n": (8, 4), "pin": (True, False)},
    "amp": {"dtype": ("bfloat16", "float16")},
    "compile": {},
    "graphs": {},
}
CONFLICTS = {"graphs": frozenset({"compile"})}  # said by one of the two only
FIRST: Settings = {"workers": {"n": 8, "pin": True}, "amp": {"dtype": "bfloat16"}, "compile": {}}
SIZE = (1 + 4) * (1 + 2) * 3


def larger_is_faster(settings: Settings) -> float:
    return 100.0 + len(settings)


def exhaust(study: Study, table: Table = larger_is_faster, most: int = 300) -> list[Settings]:
    asked: list[Settings] = []
    while (wanted := study.ask()) is not None and len(asked) < most:
        asked.append(wanted)
        value = table(wanted)
        study.tell(wanted, value, failed=value is None)
    return asked


def test_everything_that_fits_comes_first_then_past_plans() -> None:
    past: Settings = {"amp": {"dtype": "float16"}}
    study = Study(SPACE, CONFLICTS, 0, seeds=[past, {"unknown": {}}, {"amp": {"dtype": "int8"}}])
    assert study.ask() == FIRST
    assert study.ask() == past
    assert study.ask() not in ({"unknown": {}}, {"amp": {"dtype": "int8"}})


def test_the_whole_space_is_asked_once_and_then_it_ends() -> None:
    asked = exhaust(Study(SPACE, CONFLICTS, 0))
    assert len(asked) == SIZE - 1  # without the baseline
    assert all(a != b for a, b in itertools.combinations(asked, 2))
    assert {} not in asked
    assert not [s for s in asked if {"graphs", "compile"} <= s.keys()]


def test_asking_without_telling_never_repeats() -> None:
    study = Study(SPACE, CONFLICTS, 0)
    asked = [study.ask() for _ in range(SIZE + 3)]
    assert asked[SIZE - 1 :] == [None] * 4


def test_a_resumed_study_repeats_nothing_and_goes_on_as_the_first_would() -> None:
    table = {"compile": 20.0, "amp": 5.0, "workers": 1.0, "graphs": 30.0}
    whole = exhaust(Study(SPACE, CONFLICTS, 0), lambda s: 100 + sum(table[n] for n in s), most=12)
    first = Study(SPACE, CONFLICTS, 0)
    done = []
    for _ in range(6):
        asked = first.ask()
        assert asked is not None
        done.append(StudyTrial(settings=asked, value=100 + sum(table[n] for n in asked)))
    # Told only afterwards, the first study went another way: the store's trials alone count.
    again = Study(SPACE, CONFLICTS, 0)
    again.replay(done)
    rest = exhaust(again, lambda s: 100 + sum(table[n] for n in s))
    assert not [s for s in rest if s in [t.settings for t in done]]
    assert len(rest) == SIZE - 1 - 6
    resumed = Study(SPACE, CONFLICTS, 0)
    resumed.replay(StudyTrial(settings=s, value=100 + sum(table[n] for n in s)) for s in whole[:5])
    assert resumed.ask() == whole[5]


@pytest.mark.parametrize("culprit", ["workers", "amp", "compile"])
def test_what_crashes_alone_is_found_and_left_out(culprit: str) -> None:
    asked = exhaust(Study(SPACE, CONFLICTS, 0), lambda s: None if culprit in s else 100.0 + len(s))
    crashed = [s for s in asked if culprit in s and s[culprit] == FIRST[culprit]]
    # All three, at most twice while it is narrowed down, once alone later on: then never again.
    assert len(crashed) <= 4
    assert {n: p for n, p in FIRST.items() if n != culprit} in asked[:4]


def test_two_that_crash_only_together_are_still_tried_apart() -> None:
    both = {"amp", "compile"}
    asked = exhaust(Study(SPACE, CONFLICTS, 0), lambda s: None if both <= s.keys() else 100.0)
    assert {"compile": {}} in asked
    assert {"amp": {"dtype": "bfloat16"}} in asked


def test_one_that_hurts_is_dropped_and_a_better_rival_taken_in() -> None:
    gains = {"workers": 1.5, "amp": 0.6, "compile": 1.1, "graphs": 1.6}
    best: Settings = {"workers": FIRST["workers"], "graphs": {}}
    asked = exhaust(
        Study(SPACE, CONFLICTS, 0), lambda s: 100 * math.prod(gains[n] for n in s), most=6
    )
    assert best in asked


def synthetic_job(seed: int) -> tuple[Space, Table]:
    """Multiplicative gains, pairs that help or hinder each other, one that hurts, one may crash."""
    rng = random.Random(seed)
    names = ["workers", "amp", "compile", "graphs", "fused", "tf32"][: rng.choice([4, 6])]
    space = {name: SPACE.get(name, {}) for name in names}
    gain = {name: rng.choice([0, 0.02, 0.05, 0.1, 0.3, 0.7]) for name in names}
    gain[rng.choice(names)] = -0.3
    crasher = rng.choice([*names, None, None, None])
    pairs = {p: rng.choice([0, 0, -0.1, 0.05]) for p in itertools.combinations(names, 2)}
    other: dict[Scalar, float] = {
        8: 0.0,
        4: rng.choice([-0.05, 0.1]),
        "float16": rng.choice([0.03, -0.03]),
    }

    def value(s: Settings) -> float | None:
        if crasher in s:
            return None
        total = sum(gain[n] for n in s) + sum(g for p, g in pairs.items() if set(p) <= s.keys())
        total += sum(other.get(v, 0) for params in s.values() for v in params.values())
        return 100 * math.exp(total)

    return space, value


def admissible(space: Space) -> list[Settings]:
    choices = [
        [{}, *({name: dict(zip(ps, v, strict=True))} for v in itertools.product(*ps.values()))]
        for name, ps in space.items()
    ]
    merged = [dict(x for d in c for x in d.items()) for c in itertools.product(*choices)]
    return [s for s in merged if not {"compile", "graphs"} <= s.keys()]


def test_few_trials_come_close_to_the_optimum_of_jobs_with_interactions() -> None:
    shares: dict[int, list[float]] = {6: [], 12: []}
    for seed in range(20):
        space, value = synthetic_job(seed)
        optimum = max(v for s in admissible(space) if (v := value(s)) is not None)
        asked = exhaust(Study(space, CONFLICTS, seed), value, most=12)
        for budget, found in shares.items():
            values = [v for s in asked[:budget] if (v := value(s)) is not None]
            found.append(math.log(max([100.0, *values]) / 100) / math.log(max(optimum, 101) / 100))
    # Of these hard jobs (random search: 0.60 and 0.77).
    assert sum(shares[6]) / 20 > 0.75
    assert sum(shares[12]) / 20 > 0.95
    assert min(shares[12]) > 0.7


def test_a_value_that_is_no_number_and_a_failed_baseline_block_nothing() -> None:
    study = Study(SPACE, CONFLICTS, 0)
    study.tell({}, None, failed=True)
    study.tell(FIRST, math.nan)
    assert study.ask() is not None


def test_an_empty_space_has_nothing_to_ask() -> None:
    assert Study({}, {}, 0).ask() is None


names = st.lists(st.sampled_from("abcde"), unique=True, max_size=5)


@settings(max_examples=15, deadline=None)
@given(names=names, failing=st.sets(st.sampled_from("abcde")), data=st.data())
def test_any_space_ends_without_a_repeat_a_conflict_or_a_blamed_one(
    names: list[str], failing: set[str], data: st.DataObject
) -> None:
    space: Space = {n: data.draw(st.sampled_from([{}, {"p": (1, 2)}])) for n in names}
    rivals = {n: frozenset(data.draw(st.sets(st.sampled_from("abcde"))) - {n}) for n in names}
    failed: list[Settings] = []
    seen: list[Settings] = []

    def table(s: Settings) -> float | None:
        assert s not in seen
        assert not [f for f in failed if f.items() <= s.items()]
        assert not [n for n in s if rivals[n] & s.keys()]
        seen.append(s)
        if failing & s.keys():
            failed.append(s)
            return None
        return 100.0

    exhaust(Study(space, rivals, 0), table)
