"""Plans are made of gains only, read strictly, and compared field by field."""

import json
from dataclasses import replace
from typing import Any

import pytest
from contracts.example_tuning import DOCUMENTS, example_tuning

from aiak_tune.errors import PlanError
from aiak_tune.optimizations.catalog import CATALOG
from aiak_tune.profiles.workload import Environment
from aiak_tune.selector.plan import differences, dump_plan, load_plan, plan_of
from aiak_tune.selector.results import Plan


def _plan(**changes: Any) -> Plan:
    """A plan whose settings are the catalog's own: each entry with its first values."""
    plan = plan_of(example_tuning())
    assert plan is not None
    settings = {e.name: {k: values[0] for k, values in e.space.items()} for e in CATALOG}
    return replace(plan, **{"settings": settings, **changes})


def _changed(**changes: Any) -> str:
    return json.dumps({**json.loads(dump_plan(_plan())), **changes})


def test_a_plan_carries_the_winner_and_its_evidence() -> None:
    tuning = example_tuning()
    plan = plan_of(tuning)
    assert plan is not None
    assert tuning.best is not None
    assert (plan.tuning_id, plan.settings) == (tuning.id, tuning.best.settings)
    assert (plan.speedup, plan.ci95) == (tuning.best.speedup, tuning.best.ci95)
    assert plan.job.fingerprint == tuning.job.fingerprint
    assert plan.evidence == "measured"


@pytest.mark.parametrize("verdict", ["running", "no_change", "failed", "interrupted"])
def test_no_gain_no_plan(verdict: str) -> None:
    assert plan_of(example_tuning(verdict=verdict)) is None
    assert plan_of(example_tuning(best=None)) is None


def test_what_is_dumped_is_loaded_again() -> None:
    assert load_plan(dump_plan(_plan())) == _plan()


def test_yaml_is_read_too() -> None:
    import yaml

    assert load_plan(yaml.safe_dump(json.loads(dump_plan(_plan())))) == _plan()


def test_unknown_fingerprints_and_figures_are_null_in_a_predicted_plan() -> None:
    plan = _plan(speedup=None, ci95=None, evidence="predicted")
    plan = replace(plan, job=replace(plan.job, fingerprint=None, model_fingerprint=None))
    assert load_plan(dump_plan(plan)) == plan


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": 2}, "schema 2: this version reads schema 1"),
        ({"schema": None}, "schema None"),
        ({"kind": "tuning"}, "is a 'tuning', not a plan"),
        ({"settings": {"warp-drive": {}}}, "unknown optimization 'warp-drive': this version has"),
        ({"settings": {"amp": {"speed": 9}}}, "amp has no parameter 'speed'"),
        ({"settings": {"amp": {"dtype": 16}}}, "amp.dtype is 16: expected str"),
        ({"settings": {"amp": {"dtype": ["a"]}}}, "not a valid plan"),
        ({"settings": {"data-workers": {"num_workers": True}}}, "num_workers is True"),
        ({"settings": []}, "not a valid plan"),
        ({"surprise": 1}, "surprise"),
        ({"speedup": "4"}, "not a valid plan"),
        ({"speedup": -1.0}, "not a positive number"),
        ({"ci95": [1.0]}, "not a valid plan"),
        ({"numerics": "magic"}, "not a valid plan"),
        ({"evidence": "hearsay"}, "not a valid plan"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_refused_with_the_reason(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        load_plan(_changed(**changes))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "- a\n- b", "\0", "{'a': [}"])
def test_what_is_no_plan_at_all_is_refused(text: str) -> None:
    with pytest.raises(PlanError):
        load_plan(text)


def test_a_plan_never_holds_a_number_that_json_has_not() -> None:
    with pytest.raises(ValueError, match="JSON"):
        dump_plan(_plan(speedup=float("nan")))
    with pytest.raises(PlanError, match="not a positive number"):
        load_plan(_changed(speedup=float("nan")))


HERE = plan_of(example_tuning()).environment  # type: ignore[union-attr]


def test_the_same_environment_does_not_differ() -> None:
    assert differences(_plan(), HERE) == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpu": "NVIDIA A100"}, "gpu: NVIDIA H200 in the plan, NVIDIA A100 here"),
        ({"gpu": None}, "gpu: NVIDIA H200 in the plan, none here"),
        ({"compute_capability": (8, 0)}, "compute_capability: 9.0 in the plan, 8.0 here"),
        ({"gpu_count": 8}, "gpu_count: 1 in the plan, 8 here"),
        ({"ranks_per_node": 8}, "ranks_per_node: 1 in the plan, 8 here"),
        ({"nodes": 2}, "nodes: 1 in the plan, 2 here"),
        ({"torch": "2.12.0"}, "torch: 2.11 in the plan, 2.12 here"),
        ({"cores": 4}, "cores: 16 in the plan, 4 here"),
        ({"storage": "nfs"}, "storage: nvme in the plan, nfs here"),
        ({"gpu_memory_bytes": 18 << 30}, "gpu_memory_bytes: 150754820096 in the plan"),
    ],
    ids=str,
)
def test_a_difference_that_matters_names_both_values(changes: dict[str, Any], said: str) -> None:
    found = differences(_plan(), replace(HERE, **changes))
    assert len(found) == 1
    assert found[0].startswith(said)


@pytest.mark.parametrize(
    "changes",
    [
        {"torch": "2.11.1+cpu"},
        {"driver": "1.0"},
        {"python": "3.10.0"},
        {"cpu": "another"},
        {"torch": None},
        {"gpu_memory_bytes": 150_000_000_000},
    ],
    ids=str,
)
def test_what_does_not_matter_or_is_unknown_here_is_no_difference(changes: dict[str, Any]) -> None:
    assert differences(_plan(), replace(HERE, **changes)) == ()


def test_what_the_plan_does_not_know_is_not_checked() -> None:
    unknown = Environment(gpu_count=1, cores=16)
    assert differences(_plan(environment=unknown), HERE) == ()


def test_without_a_gpu_the_cpu_matters() -> None:
    plan = _plan(environment=Environment(cpu="A"))
    assert differences(plan, Environment(cpu="B")) == ("cpu: A in the plan, B here",)


def test_the_plan_of_the_first_schema_still_loads() -> None:
    text = (DOCUMENTS / "v1" / "plan.json").read_text()
    assert load_plan(text, catalog=_everything()).speedup == pytest.approx(4.61)


def _everything() -> list[Any]:
    """Entries as the stored plan names them, some of which may have left the catalog."""
    from types import SimpleNamespace

    settings = json.loads((DOCUMENTS / "v1" / "plan.json").read_text())["settings"]
    return [
        SimpleNamespace(name=name, space={key: (value,) for key, value in params.items()})
        for name, params in settings.items()
    ]
