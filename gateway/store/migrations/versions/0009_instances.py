"""A backend may have several instances, each with a state and findings of its own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_SEEN = ("kind", "state", "state_reason", "models", "findings", "probed_at")
_KEY = ("backend", "model", "strategy", "drafter", "band")


def upgrade() -> None:
    """Make of every backend one with one instance, which keeps what was known of it."""
    op.create_table(
        "instances",
        sa.Column("backend", sa.String(64), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=False),
        sa.Column("models", sa.JSON(), nullable=False),
        sa.Column("findings", sa.JSON(), nullable=False),
        sa.Column("probed_at", sa.Double()),
        sa.Column("started_at", sa.Double()),
        sa.Column("version", sa.Text()),
        sa.Column("process_since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("backend", "instance", name="pk_instances"),
    )
    seen = ", ".join(_SEEN)
    op.execute(
        f"INSERT INTO instances (backend, instance, url, {seen}, process_since) "  # noqa: S608 - our own words
        f"SELECT name, '', url, {seen}, 0.0 FROM backends"
    )
    op.add_column("backends", sa.Column("urls", sa.JSON()))
    op.add_column("backends", sa.Column("discovery", sa.String(16)))
    op.add_column("backends", sa.Column("declared_by", sa.Text()))
    op.add_column("backends", sa.Column("discovery_error", sa.Text()))
    backends = _backends()
    connection = op.get_bind()
    for name, url in connection.execute(sa.select(backends.c.name, backends.c.url)).all():
        connection.execute(
            sa.update(backends)
            .where(backends.c.name == name)
            .values(urls=[url], discovery="none", discovery_error="")
        )
    with op.batch_alter_table("backends") as table:
        for column, kind in (
            ("urls", sa.JSON()),
            ("discovery", sa.String(16)),
            ("discovery_error", sa.Text()),
        ):
            table.alter_column(column, existing_type=kind, nullable=False)
        for column in ("url", *_SEEN):
            table.drop_column(column)
    _key_calibrations_by((*_KEY, "instance"), add=True)


def downgrade() -> None:
    """Leave of every backend its first instance; a backend without one has to be registered again."""
    for column in (
        sa.Column("url", sa.Text()),
        sa.Column("kind", sa.String(16)),
        sa.Column("state", sa.String(16)),
        sa.Column("state_reason", sa.Text()),
        sa.Column("models", sa.JSON()),
        sa.Column("findings", sa.JSON()),
        sa.Column("probed_at", sa.Double()),
    ):
        op.add_column("backends", column)
    first = "(SELECT MIN(instance) FROM instances WHERE backend = backends.name)"
    for name in ("url", *_SEEN):
        op.execute(
            f"UPDATE backends SET {name} = (SELECT {name} FROM instances "  # noqa: S608 - our own words
            f"WHERE backend = backends.name AND instance = {first})"
        )
    op.execute("DELETE FROM backends WHERE url IS NULL")
    with op.batch_alter_table("backends") as table:
        table.alter_column("url", existing_type=sa.Text(), nullable=False)
        table.alter_column("kind", existing_type=sa.String(16), nullable=False)
        table.alter_column("state", existing_type=sa.String(16), nullable=False)
        table.alter_column("state_reason", existing_type=sa.Text(), nullable=False)
        table.alter_column("models", existing_type=sa.JSON(), nullable=False)
        table.alter_column("findings", existing_type=sa.JSON(), nullable=False)
        for name in ("urls", "discovery", "declared_by", "discovery_error"):
            table.drop_column(name)
    op.execute("DELETE FROM calibrations WHERE instance <> ''")
    _key_calibrations_by(_KEY, add=False)
    op.drop_table("instances")


def _backends() -> sa.TableClause:
    return sa.table(
        "backends",
        sa.column("name", sa.String(64)),
        sa.column("url", sa.Text()),
        sa.column("urls", sa.JSON()),
        sa.column("discovery", sa.String(16)),
        sa.column("discovery_error", sa.Text()),
    )


def _key_calibrations_by(columns: tuple[str, ...], *, add: bool) -> None:
    """Give the table another primary key, with or without the column `instance`."""
    if add:
        op.add_column("calibrations", sa.Column("instance", sa.Text()))
        op.execute("UPDATE calibrations SET instance = ''")
    with op.batch_alter_table("calibrations") as table:
        table.drop_constraint("pk_calibrations", type_="primary")
        if add:
            table.alter_column("instance", existing_type=sa.Text(), nullable=False)
        else:
            table.drop_column("instance")
        table.create_primary_key("pk_calibrations", list(columns))
