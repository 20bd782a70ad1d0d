"""The plan: made from a tuning, written, read back and compared with the environment at hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from aiak_tune.errors import PlanError, ProfileError
from aiak_tune.profiles.documents import from_document, parse, to_document
from aiak_tune.selector.results import Plan, PlanJob, TuningResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiak_tune.optimizations.base import Optimization, Params, Scalar, Settings
    from aiak_tune.profiles.workload import Environment

# Memory that a driver or a hypervisor keeps for itself moves the size by a few percent.
_MEMORY_TOLERANCE = 0.05


def plan_of(tuning: TuningResult) -> Plan | None:
    """Return the plan of a tuning, None unless its verdict is `faster`: no gain, no plan."""
    if tuning.verdict != "faster" or tuning.best is None:
        return None
    best, job = tuning.best, tuning.job
    return Plan(
        tuning_id=tuning.id,
        job=PlanJob(
            fingerprint=job.fingerprint, model_fingerprint=job.model_fingerprint, name=job.name
        ),
        environment=tuning.environment,
        settings=best.settings,
        speedup=best.speedup,
        ci95=best.ci95,
        numerics=best.numerics,
    )


def dump_plan(plan: Plan) -> str:
    """Return the plan as the text of a plan file: indented JSON that `load_plan` reads."""
    document = to_document(plan, kind="plan")
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def load_plan(text: str, *, catalog: Sequence[Optimization] | None = None) -> Plan:
    """Read a plan file's JSON or YAML and check its settings against the catalog.

    Raises:
        PlanError: not a plan, another schema, a figure that makes no sense, an optimization or
            parameter that this version does not know, a value of another type.
    """
    try:
        plan = from_document(parse(text, what="the plan"), Plan, kind="plan")
    except ProfileError as error:
        raise PlanError(f"{error}; make a new one with `aiak-tune tune`") from error
    if catalog is None:
        from aiak_tune.optimizations.catalog import CATALOG

        catalog = CATALOG
    _check_figures(plan)
    _check_settings(plan.settings, {entry.name: entry for entry in catalog})
    return plan


def differences(plan: Plan, environment: Environment) -> tuple[str, ...]:
    """Say where the environment differs from the plan's in what can turn its gain around.

    One text a field, with both values. A field that the plan does not have is not checked, nor one
    that is unknown here, except the GPU: there, nothing means that there is none. The driver, the
    Python version, the Torch patch level and (beside a GPU) the CPU's model do not count.
    """
    there, here = plan.environment, environment
    pairs: list[tuple[str, object, object]] = [
        ("gpu", there.gpu, here.gpu or "none"),
        ("compute_capability", _dotted(there.compute_capability), _dotted(here.compute_capability)),
        ("gpu_count", there.gpu_count, here.gpu_count),
        ("nodes", there.nodes, here.nodes),
        ("ranks_per_node", there.ranks_per_node, here.ranks_per_node),
        ("torch", _minor(there.torch), _minor(here.torch)),
        ("cuda", _minor(there.cuda), _minor(here.cuda)),
        ("cores", there.cores, here.cores),
        ("link", there.link, here.link),
        ("storage", there.storage, here.storage),
    ]
    if there.gpu is None:
        pairs.append(("cpu", there.cpu, here.cpu))
    found = [
        f"{name}: {was} in the plan, {now} here"
        for name, was, now in pairs
        if was is not None and now is not None and was != now
    ]
    return (*found, *_memory_difference(there, here))


def _memory_difference(there: Environment, here: Environment) -> tuple[str, ...]:
    was, now = there.gpu_memory_bytes, here.gpu_memory_bytes
    if was is None or now is None or abs(now - was) <= _MEMORY_TOLERANCE * was:
        return ()
    # One name, two sizes: a MIG slice, or the 40 and 80 GB models of one GPU.
    return (f"gpu_memory_bytes: {was} in the plan, {now} here",)


def _dotted(version: tuple[int, int] | None) -> str | None:
    return None if version is None else f"{version[0]}.{version[1]}"


def _minor(version: str | None) -> str | None:
    """Return "2.11" of "2.11.0+cu130"."""
    return None if version is None else ".".join(version.partition("+")[0].split(".")[:2])


def _check_figures(plan: Plan) -> None:
    figures = (plan.speedup, *(plan.ci95 or ()))
    if any(figure is not None and not 0 < figure < math.inf for figure in figures):
        raise PlanError(f"speedup {plan.speedup} with ci95 {plan.ci95}: not a positive number")


def _check_settings(settings: Settings, known: Mapping[str, Optimization]) -> None:
    for name, params in settings.items():
        if name not in known:
            raise PlanError(
                f"unknown optimization {name!r}: this version has {', '.join(sorted(known))}"
            )
        _check_params(known[name], params)


def _check_params(entry: Optimization, params: Params) -> None:
    for parameter, value in params.items():
        choices = entry.space.get(parameter)
        if choices is None:
            has = ", ".join(sorted(entry.space)) or "none"
            raise PlanError(f"{entry.name} has no parameter {parameter!r} (it has: {has})")
        if not any(_same_type(value, choice) for choice in choices):
            types = " or ".join(sorted({type(choice).__name__ for choice in choices}))
            raise PlanError(f"{entry.name}.{parameter} is {value!r}: expected {types}")
        if value not in choices:
            raise PlanError(
                f"{entry.name}.{parameter} is {value!r}: this version knows {_known(choices)}"
            )


def _known(choices: Sequence[Scalar]) -> str:
    """Return "1 to 64" for many numbers, else the choices."""
    numbers = [c for c in choices if type(c) in (int, float)]
    if len(numbers) == len(choices) > 4:
        return f"{min(numbers)} to {max(numbers)}"
    return ", ".join(str(c) for c in choices)


def _same_type(value: Scalar, choice: Scalar) -> bool:
    # By type and not isinstance: True is no number of workers. A whole number will do for a float.
    return type(value) is type(choice) or (type(value) is int and type(choice) is float)
