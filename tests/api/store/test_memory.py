"""The store in memory, which tests use, keeps the contract too."""

import pytest
from contracts.memory_store import MemoryTuningStore
from contracts.tuning_repository import TuningStoreSuite

from aiak_tune.selector.results import TuningStore


class TestMemory(TuningStoreSuite):
    @pytest.fixture
    def store(self) -> TuningStore:
        return MemoryTuningStore()
