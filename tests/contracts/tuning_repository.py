"""What every TuningStore must do; an implementation subclasses the suite and gives a fixture."""

from dataclasses import replace

import pytest
from contracts.example_tuning import ID, example_run, example_tuning

from aiak_tune.errors import UsageError
from aiak_tune.profiles.workload import Warn
from aiak_tune.selector.results import Failed, Measured, TuningResult, TuningStore, Verdict, Work


class TuningStoreSuite:
    @pytest.fixture
    def store(self) -> TuningStore:
        raise NotImplementedError

    def test_what_was_saved_is_found_again(self, store: TuningStore) -> None:
        tuning = example_tuning(confirmation=(example_run(0), example_run(1)))
        store.save(tuning)
        assert store.find(tuning.id) == tuning

    def test_a_tuning_that_has_just_begun_can_be_saved(self, store: TuningStore) -> None:
        tuning = _begun("01JE5Q3X7N0000000000000002")
        store.save(tuning)
        assert store.find(tuning.id) == tuning

    def test_findings_without_a_profile_are_kept(self, store: TuningStore) -> None:
        tuning = example_tuning(profile=None)
        assert tuning.findings
        store.save(tuning)
        assert store.find(tuning.id) == tuning

    def test_saving_again_replaces_the_whole_tuning(self, store: TuningStore) -> None:
        tuning = example_tuning(confirmation=(example_run(0),))
        store.save(tuning)
        shorter = replace(tuning, trials=tuning.trials[:2], confirmation=(), verdict="interrupted")
        store.save(shorter)
        assert store.find(tuning.id) == shorter
        assert store.newest(limit=9) == (shorter,)

    def test_trials_keep_their_order_whatever_their_numbers(self, store: TuningStore) -> None:
        tuning = example_tuning()
        turned = replace(tuning, trials=tuning.trials[::-1] + tuning.trials[:1])
        store.save(turned)
        assert store.find(turned.id) == turned

    def test_one_tuning_does_not_touch_another(self, store: TuningStore) -> None:
        one, other = example_tuning(), _begun("01JE5Q3X7N0000000000000002")
        store.save(one)
        store.save(other)
        assert store.find(one.id) == one

    def test_an_unknown_id_finds_nothing(self, store: TuningStore) -> None:
        store.save(example_tuning())
        for unknown in ("", "01JE5", "01JE5Q3X9N", "________", "%%%%%%%%", ID.lower(), ID + "0"):
            assert store.find(unknown) is None

    def test_a_prefix_of_eight_characters_will_do(self, store: TuningStore) -> None:
        store.save(example_tuning())
        assert store.find(ID[:7]) is None
        assert store.find(ID[:8]) == example_tuning()

    def test_a_prefix_of_several_is_refused_but_a_whole_id_is_not(self, store: TuningStore) -> None:
        store.save(example_tuning())
        store.save(longer := example_tuning(id=ID + "0"))
        with pytest.raises(UsageError, match="several"):
            store.find(ID[:8])
        assert store.find(ID) == example_tuning()
        assert store.find(longer.id) == longer

    def test_the_newest_come_first_whatever_the_time_is_written_in(
        self, store: TuningStore
    ) -> None:
        moments = ("2026-12-01T12:00:00Z", "2026-12-01T12:00:00.5Z", "2026-12-01T14:30:00+02:00")
        for n, moment in enumerate(moments):
            store.save(_begun(f"{n}", created_at=moment))
        store.save(_begun("3", created_at=moments[2]))  # the same time: the later id
        assert [tuning.id for tuning in store.newest(limit=9)] == ["3", "2", "1", "0"]
        assert [tuning.id for tuning in store.newest(limit=2)] == ["3", "2"]
        assert store.newest(limit=0) == ()

    def test_the_newest_of_one_job(self, store: TuningStore) -> None:
        store.save(_begun("1"))
        store.save(_begun("2", fingerprint="job1:other"))
        assert [t.id for t in store.newest(limit=9, job_fingerprint="job1:other")] == ["2"]
        assert store.newest(limit=9, job_fingerprint="job1:none") == ()

    @pytest.mark.parametrize("verdict", ["running", "interrupted"])
    def test_the_last_unfinished_tuning_of_a_job(
        self, store: TuningStore, verdict: Verdict
    ) -> None:
        store.save(_begun("1", verdict=verdict, created_at="2026-12-01T10:00:00Z"))
        store.save(_begun("2", verdict=verdict, created_at="2026-12-01T11:00:00Z"))
        store.save(_begun("3", verdict="no_change", created_at="2026-12-01T12:00:00Z"))
        store.save(_begun("4", fingerprint="job1:x", created_at="2026-12-01T13:00:00Z"))
        found = store.last_unfinished(_begun("1").job.fingerprint)
        assert found is not None
        assert found.id == "2"

    def test_no_unfinished_tuning_is_none(self, store: TuningStore) -> None:
        assert store.last_unfinished("job1:none") is None
        store.save(example_tuning())
        assert store.last_unfinished(example_tuning().job.fingerprint) is None

    def test_hostile_text_comes_back_as_it_was(self, store: TuningStore) -> None:
        hostile = "'; DROP TABLE tunings; --\0\x1b[31m\udcff\u202e[red]ü𝄞\n"
        job = replace(example_tuning().job, name=hostile, command=("python", hostile))
        tuning = example_tuning(job=job, warnings=(Warn(code="x", text=hostile),))
        store.save(tuning)
        assert store.find(tuning.id) == tuning
        assert store.newest(limit=1) == (tuning,)

    def test_a_loss_that_is_no_number_does_not_lose_the_trial(self, store: TuningStore) -> None:
        losses = (2.5, float("nan"), float("inf"))
        first = example_tuning().trials[0]
        assert isinstance(first, Measured)
        measured = replace(first, work=Work(losses=losses))
        store.save(example_tuning(trials=(measured,)))
        assert repr(store.find(ID)) == repr(example_tuning(trials=(measured,)))

    def test_secrets_are_not_stored(self, store: TuningStore) -> None:
        command = ("python", "train.py", "--api-key", "hush-hush", "HF_TOKEN=hush-hush")
        trial = Failed(
            number=0,
            settings={},
            reason_code="crash",
            reason="exit 1",
            duration_s=1.0,
            log_tail="login with password=hush-hush",
        )
        job = replace(example_tuning().job, command=command)
        store.save(example_tuning(job=job, trials=(trial,)))
        assert "hush-hush" not in repr(store.find(ID))
        assert "hush-hush" not in repr(store.newest(limit=1))


def _begun(
    id_: str,
    *,
    created_at: str = "2026-12-01T15:00:00Z",
    verdict: Verdict = "running",
    fingerprint: str | None = None,
) -> TuningResult:
    tuning = example_tuning()
    job = replace(tuning.job, fingerprint=fingerprint or tuning.job.fingerprint)
    return TuningResult(
        id=id_,
        created_at=created_at,
        job=job,
        environment=tuning.environment,
        numerics_limit=tuning.numerics_limit,
        verdict=verdict,
    )
