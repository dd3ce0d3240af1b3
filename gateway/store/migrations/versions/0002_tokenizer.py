"""A backend may have a tokenizer of files."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column; the backends that are there ask their own `/tokenize`, as before."""
    op.add_column("backends", sa.Column("tokenizer", sa.Text()))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("backends", "tokenizer")
