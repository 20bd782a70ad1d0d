"""The suite that every entry of the catalog passes, and the judgement over them."""

from __future__ import annotations

import builtins
import json
import math
import shlex
import symtable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from strategies import profiles

import aiak_tune.optimizations.catalog as catalog
from aiak_tune.optimizations.base import Numerics, Optimization, Stage
from aiak_tune.optimizations.catalog import CATALOG, MOST, WORTH, amdahl, by_name, judge
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import StepMs, WorkloadProfile

FOLDER = Path(catalog.__file__).parent
each = pytest.mark.parametrize("optimization", CATALOG, ids=lambda o: o.name)
some = settings(max_examples=60, deadline=None)


@each
def test_its_own_examples_hold(optimization: Optimization) -> None:
    got = [optimization.check(e.profile).fits for e in optimization.examples]
    assert got == [e.fits for e in optimization.examples]
    assert set(got) == {True, False}, "show one profile that fits and one that does not"


@each
@some
@given(profile=profiles())
def test_check_always_says_why(optimization: Optimization, profile: WorkloadProfile) -> None:
    assert optimization.check(profile).reason


@each
@some
@given(profile=profiles())
def test_judgement_is_finite_and_worth_a_trial(
    optimization: Optimization, profile: WorkloadProfile
) -> None:
    finding = judge(optimization, profile)
    assert finding.reason
    if finding.bound is not None:
        assert finding.fits and WORTH <= finding.bound <= MOST and math.isfinite(finding.bound)
        json.dumps(finding.bound, allow_nan=False)


@each
@some
@given(profile=profiles())
def test_a_finding_narrows_the_space_and_never_empties_it(
    optimization: Optimization, profile: WorkloadProfile
) -> None:
    finding = optimization.check(profile)
    assert set(finding.space) <= set(optimization.space)
    for name, values in finding.space.items():
        assert set(values) <= set(optimization.space[name])
        assert len(set(values)) == len(values) > 0


@each
@some
@given(profile=profiles())
def test_every_value_in_the_space_has_a_numerics_class(
    optimization: Optimization, profile: WorkloadProfile
) -> None:
    for values in product(*(v[:3] for v in optimization.space.values())):
        params = dict(zip(optimization.space, values, strict=True))
        assert isinstance(optimization.numerics(profile, params), Numerics)


@each
def test_its_declaration_is_complete(optimization: Optimization) -> None:
    assert isinstance(optimization.stage, Stage) and optimization.level in (0, 1, 2)
    assert optimization.addresses <= set(Category) and optimization.addresses
    assert optimization.summary and "\n" not in optimization.summary
    assert all(optimization.space.values())


@each
def test_its_lines_by_hand_stand_alone(optimization: Optimization) -> None:
    """Nothing of ours, no name but the three, which stay the job's own objects."""
    for values in product(*(v[:3] for v in optimization.space.values())):
        lines = optimization.by_hand(dict(zip(optimization.space, values, strict=True)))
        assert lines.endswith("\n") and "aiak" not in lines
        if optimization.stage is Stage.ENVIRONMENT:
            words = [shlex.split(line) for line in lines.splitlines()]
            assert all(len(w) == 2 and w[0] == "export" and "=" in w[1] for w in words)
            continue
        names = symtable.symtable(lines, "by hand", "exec")
        free = {n.get_name() for n in names.get_symbols() if not n.is_assigned()}
        free -= {n.get_name() for n in names.get_symbols() if n.is_imported()} | set(dir(builtins))
        assert free <= {"model", "optimizer", "loader"}
        assigned = {n.get_name() for n in names.get_symbols() if n.is_assigned()}
        assert not assigned & {"model", "optimizer", "loader"}, "changed in place, not replaced"


def test_no_file_is_missing_from_the_catalog() -> None:
    files = {p.stem for p in FOLDER.glob("*.py")} - {"__init__", "base", "catalog", "examples"}
    assert files == {o.name.replace("-", "_") for o in CATALOG}


def test_names_are_unique_and_found() -> None:
    assert [by_name[o.name] for o in CATALOG] == list(CATALOG)


@each
def test_conflicts_are_mutual(optimization: Optimization) -> None:
    assert optimization.conflicts <= by_name.keys() - {optimization.name}
    for other in optimization.conflicts:
        assert optimization.name in by_name[other].conflicts, f"{other} does not know of it"


def fitting(optimization: Optimization) -> WorkloadProfile:
    return next(e.profile for e in optimization.examples if e.fits)


@each
def test_a_job_that_an_entry_fits_is_worth_it(optimization: Optimization) -> None:
    finding = judge(optimization, fitting(optimization))
    assert finding.fits and finding.bound is not None
    limit = amdahl(optimization, fitting(optimization))
    assert limit is not None and finding.bound <= limit


@each
def test_without_a_breakdown_nothing_is_ruled_out(optimization: Optimization) -> None:
    finding = judge(optimization, replace(fitting(optimization), breakdown_ms=None))
    assert finding.fits
    assert finding.bound is not None or "no breakdown" in finding.reason


@each
def test_what_cannot_gain_a_percent_is_left_out_with_the_figure(
    optimization: Optimization,
) -> None:
    quiet = {c: 0.0 for c in Category} | {Category.HOST: 999.0}
    quiet |= {c: 2.0 for c in optimization.addresses}
    step_ms = sum(quiet.values())
    fits = fitting(optimization)
    profile = replace(
        fits,
        breakdown_ms=quiet,
        steps=replace(fits.steps, step_ms=StepMs(mean=step_ms, median=1, p05=1, p95=1)),
    )
    finding = judge(optimization, profile)
    assert not finding.fits and finding.bound is None
    assert "at most 0." in finding.reason or "0.2%" in finding.reason
