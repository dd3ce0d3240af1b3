"""What a step of the gateway's loop costs, measured backend by backend."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table; nothing is calibrated yet."""
    op.create_table(
        "calibrations",
        sa.Column("backend", sa.String(64), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("strategy", sa.String(16), nullable=False),
        sa.Column("drafter", sa.String(64), nullable=False),
        sa.Column("band", sa.String(16), nullable=False),
        sa.Column("measured_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("context_tokens", sa.Integer(), nullable=False),
        sa.Column("plain_seconds", sa.Double(), nullable=False),
        sa.Column("verify_seconds", sa.JSON(), nullable=False),
        sa.Column("draft_seconds", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("backend", "model", "strategy", "drafter", "band", name="pk_calibrations"),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("calibrations")
