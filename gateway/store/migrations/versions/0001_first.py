"""The first tables: registry, keys, runners, stage records."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_STAGE_INDEXES = (("at",), ("request_id",), ("mode", "action"), ("model",), ("backend",), ("workload",))


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "meta",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("text", sa.Text()),
        sa.Column("number", sa.BigInteger()),
        sa.PrimaryKeyConstraint("name", name="pk_meta"),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table(
        "backends",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("declared_kind", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=False),
        sa.Column("credential", sa.Text()),
        sa.Column("models", sa.JSON(), nullable=False),
        sa.Column("findings", sa.JSON(), nullable=False),
        sa.Column("probed_at", sa.Double()),
        sa.PrimaryKeyConstraint("name", name="pk_backends"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("sha256", name="uq_api_keys_sha256"),
    )
    op.create_table(
        "runners",
        sa.Column("url", sa.String(512), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("drafters", sa.JSON(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("joined_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("url", name="pk_runners"),
    )
    op.create_table(
        "stage_records",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("drafter", sa.Text()),
        sa.Column("executor", sa.Text()),
        sa.Column("k", sa.Integer()),
        sa.Column("temperature_band", sa.String(16), nullable=False),
        sa.Column("draft_tokens", sa.BigInteger()),
        sa.Column("accepted_tokens", sa.BigInteger()),
        sa.Column("timed_tokens", sa.BigInteger()),
        sa.Column("timed_seconds", sa.Double()),
        sa.Column("k_curve", sa.JSON()),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_stage_records"),
    )
    for columns in _STAGE_INDEXES:
        op.create_index(f"ix_stage_records_{'_'.join(columns)}", "stage_records", list(columns))


def downgrade() -> None:
    """Drop every table."""
    for table in ("stage_records", "runners", "api_keys", "backends", "leases", "meta"):
        op.drop_table(table)
