"""A TuningStore in memory, for tests of what needs a store; it passes the conformance suite."""

from datetime import UTC, datetime

from aiak_tune.errors import UsageError
from aiak_tune.selector.redaction import redact_tuning
from aiak_tune.selector.results import TuningResult


class MemoryTuningStore:
    def __init__(self) -> None:
        self._tunings: dict[str, TuningResult] = {}

    def save(self, tuning: TuningResult) -> None:
        self._tunings[tuning.id] = redact_tuning(tuning)

    def find(self, tuning_id: str) -> TuningResult | None:
        if tuning_id in self._tunings or len(tuning_id) < 8:
            return self._tunings.get(tuning_id)
        found = [t for id_, t in self._tunings.items() if id_.startswith(tuning_id)]
        if len(found) > 1:
            raise UsageError(f"{tuning_id!r} fits several tunings")
        return found[0] if found else None

    def last_unfinished(self, job_fingerprint: str) -> TuningResult | None:
        tunings = self.newest(limit=len(self._tunings), job_fingerprint=job_fingerprint)
        return next((t for t in tunings if t.verdict in ("running", "interrupted")), None)

    def newest(self, *, limit: int, job_fingerprint: str | None = None) -> tuple[TuningResult, ...]:
        found = [
            tuning
            for tuning in self._tunings.values()
            if job_fingerprint in (None, tuning.job.fingerprint)
        ]
        return tuple(sorted(found, key=_age, reverse=True)[: max(limit, 0)])


def _age(tuning: TuningResult) -> tuple[datetime, str]:
    moment = datetime.fromisoformat(tuning.created_at)
    return moment.replace(tzinfo=moment.tzinfo or UTC), tuning.id
