"""Run by Alembic: migrates on the connection that `gateway.store.migrate` hands over."""

from __future__ import annotations

from alembic import context

from gateway.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite can change a column only by copying its table.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
