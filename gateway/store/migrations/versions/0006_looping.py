"""Whether an answer loops."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column; of earlier records it is not known."""
    op.add_column("stage_records", sa.Column("looping", sa.Boolean()))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("stage_records", "looping")
