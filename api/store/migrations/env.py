"""Alembic runs this file. It migrates over the connection that `connection.py` hands in."""

from alembic import context

from aiak_tune.api.store.schema import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    # The caller's transaction holds all of it: a half-made schema is never seen.
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
