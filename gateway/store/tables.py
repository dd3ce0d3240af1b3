"""Every table of the store. Portable SQL only: SQLite by default, PostgreSQL by URL."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

# SQLite numbers rows by itself only when the primary key's type is exactly INTEGER.
RowId = BigInteger().with_variant(Integer(), "sqlite")

meta = Table(
    "meta",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("text", Text),
    Column("number", BigInteger),
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("owner", String(64), nullable=False),
    Column("expires_at", Double, nullable=False),
)

backends = Table(
    "backends",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("declared_kind", String(16), nullable=False),
    Column("credential", Text),
    Column("tokenizer", Text),
    Column("urls", JSON, nullable=False),
    Column("discovery", String(16), nullable=False),
    Column("declared_by", Text),
    Column("discovery_error", Text, nullable=False),
)

instances = Table(
    "instances",
    metadata,
    Column("backend", String(64), primary_key=True),
    Column("instance", Text, primary_key=True),
    Column("url", Text, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    Column("state_reason", Text, nullable=False),
    Column("models", JSON, nullable=False),
    Column("findings", JSON, nullable=False),
    Column("probed_at", Double),
    Column("started_at", Double),
    Column("version", Text),
    Column("process_since", Double, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(64), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("prefix", String(16), nullable=False),
    Column("sha256", String(64), nullable=False, unique=True),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
)

runners = Table(
    "runners",
    metadata,
    Column("url", String(512), primary_key=True),
    Column("node", Text, nullable=False),
    Column("drafters", JSON, nullable=False),
    Column("version", Text, nullable=False),
    Column("joined_at", Double, nullable=False),
    Column("seen_at", Double, nullable=False),
    Column("draft_model", JSON),
)

calibrations = Table(
    "calibrations",
    metadata,
    Column("backend", String(64), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("strategy", String(16), primary_key=True),
    Column("drafter", String(64), primary_key=True),
    Column("band", String(16), primary_key=True),
    Column("instance", Text, primary_key=True),
    Column("measured_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("context_tokens", Integer, nullable=False),
    Column("plain_seconds", Double, nullable=False),
    Column("verify_seconds", JSON, nullable=False),
    Column("draft_seconds", JSON, nullable=False),
)

overlays = Table(
    "overlays",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("tenant", Text),
    Column("model", Text),
    Column("backend", Text),
    Column("rule", Text),
    Column("value", Text),
    Column("author", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("lifted_at", Double),
    Column("lifted_by", Text),
)

policy_revisions = Table(
    "policy_revisions",
    metadata,
    Column("number", RowId, primary_key=True),
    Column("revision", String(64), nullable=False),
    Column("text", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)

stage_records = Table(
    "stage_records",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("at", Double, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("action", String(32), nullable=False),
    Column("reason", Text),
    Column("model", Text, nullable=False),
    Column("backend", Text, nullable=False),
    Column("workload", Text, nullable=False),
    Column("drafter", Text),
    Column("executor", Text),
    Column("k", Integer),
    Column("temperature_band", String(16), nullable=False),
    Column("draft_tokens", BigInteger),
    Column("accepted_tokens", BigInteger),
    Column("timed_tokens", BigInteger),
    Column("timed_seconds", Double),
    Column("looping", Boolean),
    Column("k_curve", JSON(none_as_null=True)),
    Column("compared", JSON(none_as_null=True)),
    Column("load_band", String(16)),
    Column("control_backend", Text),
    Column("block_at", Double),
    Column("block_seconds", Double),
    Column("first_byte_seconds", Double),
    Column("total_seconds", Double),
    Column("completion_tokens", BigInteger),
    Column("payload", JSON, nullable=False),
    Index(None, "at"),
    Index(None, "request_id"),
    Index(None, "mode", "action"),
    Index(None, "model"),
    Index(None, "backend"),
    Index(None, "workload"),
)

engine_blocks = Table(
    "engine_blocks",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("backend", Text, nullable=False),
    Column("block_at", Double, nullable=False),
    Column("block_seconds", Double, nullable=False),
    Column("tokens", Double, nullable=False),
    Column("busy_seconds", Double, nullable=False),
    Column("running_seconds", Double, nullable=False),
    Index(None, "backend", "block_at"),
    Index(None, "block_at"),
)
