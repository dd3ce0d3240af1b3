"""A draft runner may have loaded a draft model."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column; a runner that has a draft model says so with its next join."""
    op.add_column("runners", sa.Column("draft_model", sa.JSON()))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("runners", "draft_model")
