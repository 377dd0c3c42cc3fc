"""Run by Alembic for every command. `upgrade` of this package passes a connection that is in a transaction."""

from alembic import context

from rlhf_lab.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # for SQLite, which can change a column only by copying the table
)
with context.begin_transaction():
    context.run_migrations()
