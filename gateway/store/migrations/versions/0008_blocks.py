"""Blocks of time: which one a record belongs to, and what an engine made of each."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0008"
down_revision = "0007"

_COLUMNS: dict[str, TypeEngine[Any]] = {
    "load_band": sa.String(16),
    "control_backend": sa.Text(),
    "block_at": sa.Double(),
    "block_seconds": sa.Double(),
    "first_byte_seconds": sa.Double(),
    "total_seconds": sa.Double(),
    "completion_tokens": sa.BigInteger(),
}


def upgrade() -> None:
    """Add the columns, of which nothing is known in earlier records, and the table."""
    for name, kind in _COLUMNS.items():
        op.add_column("stage_records", sa.Column(name, kind))
    op.create_table(
        "engine_blocks",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("block_at", sa.Double(), nullable=False),
        sa.Column("block_seconds", sa.Double(), nullable=False),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("busy_seconds", sa.Double(), nullable=False),
        sa.Column("running_seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_engine_blocks"),
    )
    op.create_index("ix_engine_blocks_backend_block_at", "engine_blocks", ["backend", "block_at"])
    op.create_index("ix_engine_blocks_block_at", "engine_blocks", ["block_at"])


def downgrade() -> None:
    """Drop both."""
    op.drop_table("engine_blocks")
    for name in reversed(_COLUMNS):
        op.drop_column("stage_records", name)
