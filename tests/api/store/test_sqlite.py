"""SQLite keeps the contract, and what happens to the file is said or survived."""

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from contracts.example_tuning import ID, example_tuning
from contracts.tuning_repository import TuningStoreSuite

from aiak_tune.api.store import open_store
from aiak_tune.api.store.repository import SqlTuningStore
from aiak_tune.errors import StoreError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "tunings.db"


@pytest.fixture
def opened(file: Path) -> Iterator[SqlTuningStore]:
    with _open(file) as store:
        yield store


def _open(file: Path, *, timeout_s: float = 5) -> SqlTuningStore:
    return open_store(f"sqlite:///{file}", timeout_s=timeout_s)


class TestSqlite(TuningStoreSuite):
    @pytest.fixture
    def store(self, opened: SqlTuningStore) -> SqlTuningStore:
        return opened


def test_the_file_is_in_the_users_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AIAK_TUNE_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    with open_store() as store:
        assert store.name == str(tmp_path / "xdg" / "aiak-tune" / "tunings.db")
    monkeypatch.setenv("XDG_DATA_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with open_store() as store:
        assert store.name == str(tmp_path / "home/.local/share/aiak-tune/tunings.db")
    assert (tmp_path / "xdg" / "aiak-tune").stat().st_mode & 0o077 == 0


def test_the_variable_gives_another_store(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setenv("AIAK_TUNE_STORE", f"sqlite:///{file}")
    with open_store() as store:
        assert store.name == str(file)


@pytest.mark.parametrize("url", ["tunings.db", "/data/tunings.db", "mysql://host/db", "://"])
def test_a_url_that_is_none_of_ours_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="sqlite"):
        open_store(url)


def test_another_process_finds_what_was_saved(file: Path) -> None:
    with _open(file) as store:
        store.save(example_tuning())
    with _open(file) as store:
        assert store.find(ID) == example_tuning()


def test_a_killed_process_loses_nothing_that_was_acknowledged(file: Path) -> None:
    code = f"""
from contracts.example_tuning import example_tuning
from aiak_tune.api.store import open_store
store = open_store("sqlite:///{file}")
for n in range(10_000):
    store.save(example_tuning(id=f"{{n:08}}"))
    print(n, flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert child.stdout is not None
    acknowledged = -1
    while acknowledged < 20:
        acknowledged = int(child.stdout.readline())
    child.kill()
    acknowledged = max([acknowledged, *map(int, child.stdout)])
    child.wait()
    with _open(file) as store:
        saved = {tuning.id: tuning for tuning in store.newest(limit=10_000)}
        for n in range(acknowledged + 1):
            assert saved[f"{n:08}"] == example_tuning(id=f"{n:08}")
        store.save(example_tuning())


class Lock:
    """Another process's connection that holds the file, as `BEGIN EXCLUSIVE` does."""

    def __init__(self, file: Path) -> None:
        self.connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self.connection.execute("BEGIN EXCLUSIVE")

    def release(self) -> None:
        self.connection.rollback()
        self.connection.close()

    def release_after(self, seconds: float) -> None:
        threading.Timer(seconds, self.release).start()


def test_a_save_waits_for_a_lock(opened: SqlTuningStore, file: Path) -> None:
    Lock(file).release_after(0.7)
    begun = time.monotonic()
    opened.save(example_tuning())
    assert time.monotonic() - begun > 0.5
    assert opened.find(ID) == example_tuning()


def test_a_lock_that_stays_is_an_error_that_names_the_file(file: Path) -> None:
    with _open(file, timeout_s=0.3) as store:
        store.save(example_tuning())
        lock = Lock(file)
        with pytest.raises(StoreError, match=f"{file} is locked .* try again"):
            store.save(example_tuning(verdict="failed"))
        assert store.find(ID) == example_tuning(), "reading goes on beside a writer"
        lock.release()
        store.save(example_tuning(verdict="failed"))


def test_opening_waits_for_a_lock_on_a_file_without_write_ahead_log(file: Path) -> None:
    file.parent.mkdir()
    Lock(file).release_after(0.7)  # a new file: its lock shuts readers out too
    with _open(file) as store:
        store.save(example_tuning())


def test_opening_gives_up_after_the_time_out(file: Path) -> None:
    file.parent.mkdir()
    lock = Lock(file)
    with pytest.raises(StoreError, match="is locked"):
        _open(file, timeout_s=0.3)
    lock.release()


def test_many_at_once_make_one_schema_and_lose_nothing(file: Path) -> None:
    failures: list[BaseException] = []

    def work(n: int) -> None:
        try:
            with _open(file, timeout_s=30) as store:
                store.save(example_tuning(id=f"{n:08}"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with _open(file) as store:
        assert len(store.newest(limit=99)) == 8


def test_a_file_that_is_no_database_is_refused_and_left_alone(file: Path) -> None:
    file.parent.mkdir()
    file.write_text("my notes, not a database\n" * 100)
    with pytest.raises(StoreError, match=f"{file} is not a database .*move it away"):
        _open(file)
    assert file.read_text().startswith("my notes")


def test_a_damaged_file_is_an_error_that_says_what_to_do(file: Path) -> None:
    with _open(file) as store:
        for n in range(30):
            store.save(example_tuning(id=f"{n:08}"))
    content = bytearray(file.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    file.write_bytes(content)
    with pytest.raises(StoreError, match=f"{file} is damaged .*backup"), _open(file) as store:
        store.newest(limit=99)


def test_a_row_that_cannot_be_read_is_named(opened: SqlTuningStore, file: Path) -> None:
    opened.save(example_tuning())
    _execute(file, "UPDATE trials SET document = '{' WHERE position = 1")
    with pytest.raises(StoreError, match=f"tuning {ID} in the store {file} cannot be read"):
        opened.find(ID)


def test_a_newer_schema_is_refused(file: Path) -> None:
    _open(file).close()
    _execute(file, "UPDATE aiak_tune_version SET version_num = '9999'")
    with pytest.raises(StoreError, match="schema 9999, this version knows up to .*update"):
        _open(file)


def test_a_database_of_something_else_is_refused(file: Path) -> None:
    file.parent.mkdir()
    _execute(file, "CREATE TABLE trials (trial_id INTEGER)")  # as Optuna has it
    with pytest.raises(StoreError, match="belongs to something else .*'trials'"):
        _open(file)


@pytest.mark.parametrize(
    ("pragma", "said"), [("query_only=ON", "is read-only"), ("max_page_count=1", "disk is full")]
)
def test_a_save_that_cannot_be_written_is_an_error_and_changes_nothing(
    opened: SqlTuningStore, pragma: str, said: str
) -> None:
    opened.save(example_tuning())
    _on_connect(opened, lambda connection: connection.execute(f"PRAGMA {pragma}"))
    with pytest.raises(StoreError, match=said):
        opened.save(example_tuning(id="2" * 8, trials=example_tuning().trials * 50))
    assert opened.newest(limit=9) == (example_tuning(),)


def test_a_folder_that_cannot_be_made_is_an_error() -> None:
    with pytest.raises(StoreError, match="cannot be made .*AIAK_TUNE_STORE"):
        open_store("sqlite:////proc/none/tunings.db")


def test_a_folder_in_the_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        open_store(f"sqlite:///{tmp_path}")


def test_the_connection_is_set_up_as_promised(opened: SqlTuningStore) -> None:
    def pragmas(connection: sa.Connection) -> list[object]:
        names = ("journal_mode", "foreign_keys", "synchronous")
        return [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]

    assert opened._database.read(pragmas) == ["wal", 1, 2]


def test_opening_loads_alembic_only_to_migrate(file: Path) -> None:
    _open(file).close()
    code = (
        "import sys; from aiak_tune.api.store import open_store; "
        f"open_store('sqlite:///{file}'); assert 'alembic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _execute(file: Path, statement: str) -> None:
    connection = sqlite3.connect(file)
    connection.execute(statement)
    connection.commit()
    connection.close()


def _on_connect(store: SqlTuningStore, action: Callable[[Any], object]) -> None:
    store.close()  # the pool is emptied, so that the next call connects anew
    sa.event.listen(store._database.engine, "connect", lambda connection, _: action(connection))
