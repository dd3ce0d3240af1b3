"""What further drafters would have done with an answer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column; earlier records were compared with nothing."""
    op.add_column("stage_records", sa.Column("compared", sa.JSON()))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("stage_records", "compared")
