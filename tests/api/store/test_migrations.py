"""Every schema ever released is upgraded and read; the migrations make what the code expects."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from contracts.example_tuning import ID, example_run, example_tuning

from aiak_tune.api.store import connection, open_store
from aiak_tune.api.store.schema import HEAD, METADATA, VERSION_TABLE

OLD = Path(__file__).resolve().parents[2] / "data" / "store"
SCRIPTS = ScriptDirectory(str(Path(connection.__file__).parent / "migrations"))


@pytest.mark.parametrize("path", sorted(OLD.glob("*.sql")), ids=lambda p: p.stem)
def test_every_schema_ever_released_is_upgraded_and_read(path: Path, tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "old.db")
    old.executescript(path.read_text())
    old.close()
    with open_store(f"sqlite:///{tmp_path / 'old.db'}") as store:
        expected = example_tuning(confirmation=(example_run(0), example_run(1)))
        assert store.find(ID) == expected  # the same tuning in every file
        store.save(expected)
        assert store.newest(limit=9) == (expected,)


def test_a_new_migration_brings_its_file() -> None:
    assert [path.stem for path in sorted(OLD.glob("*.sql"))] == sorted(_revisions())


def test_head_is_the_newest_migration() -> None:
    assert SCRIPTS.get_current_head() == HEAD
    assert len(SCRIPTS.get_heads()) == 1


def test_the_migrations_make_the_tables_of_the_code(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 'new.db'}") as store:
        engine = store._database.engine
        with engine.connect() as opened:
            context = MigrationContext.configure(opened, opts={"version_table": VERSION_TABLE})
            assert compare_metadata(context, METADATA) == []


def test_the_migrations_are_plain_sql_on_postgresql_too() -> None:
    dialect = sa.engine.make_url("postgresql+psycopg://").get_dialect()()
    for table in METADATA.sorted_tables:
        created = sa.schema.CreateTable(table).compile(dialect=dialect)
        assert f"CREATE TABLE {table.name}" in str(created)


def _revisions() -> Iterable[str]:
    return (script.revision for script in SCRIPTS.walk_revisions())
