"""Alembic runs this file for every command; `upgrade` of this package hands it a connection inside a transaction."""

from alembic import context

from rlhf_lab.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite changes a column by copying its table
)
with context.begin_transaction():
    context.run_migrations()
