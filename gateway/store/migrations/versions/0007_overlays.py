"""Overlays beside the policy, and every policy that has been in force."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the two tables."""
    op.create_table(
        "overlays",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("tenant", sa.Text()),
        sa.Column("model", sa.Text()),
        sa.Column("backend", sa.Text()),
        sa.Column("rule", sa.Text()),
        sa.Column("value", sa.Text()),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.Column("lifted_at", sa.Double()),
        sa.Column("lifted_by", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_overlays"),
    )
    op.create_table(
        "policy_revisions",
        sa.Column("number", _ROW_ID, nullable=False),
        sa.Column("revision", sa.String(64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_policy_revisions"),
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("policy_revisions")
    op.drop_table("overlays")
