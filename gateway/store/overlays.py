"""Overlays at rest; lifted and expired ones stay, as history."""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert, or_, select, update
from sqlalchemy.engine import RowMapping

from gateway.policy.model import Mode
from gateway.policy.overlays import Overlay, OverlayKind, Scope
from gateway.store.database import Database, unbroken
from gateway.store.meta import count_change
from gateway.store.tables import overlays

_SCOPE = ("tenant", "model", "backend", "rule")
_PLAIN = ("id", "author", "reason", "created_at", "expires_at", "lifted_at", "lifted_by")


class OverlayRows:
    """The overlays table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @unbroken
    async def in_force(self, at: float) -> tuple[Overlay, ...]:
        """Those that hold at Unix time `at`, oldest first."""
        unexpired = or_(overlays.c.expires_at.is_(None), overlays.c.expires_at > at)
        holding = select(overlays).where(overlays.c.lifted_at.is_(None), unexpired)
        holding = holding.order_by(overlays.c.created_at, overlays.c.id)
        async with self._database.reading() as connection:
            rows = await connection.execute(holding)
            return tuple(_overlay(row) for row in rows.mappings())

    @unbroken
    async def newest(self, limit: int) -> tuple[Overlay, ...]:
        """The last `limit`, whether they hold or not, newest first."""
        listed = select(overlays).order_by(overlays.c.created_at.desc(), overlays.c.id).limit(limit)
        async with self._database.reading() as connection:
            rows = await connection.execute(listed)
            return tuple(_overlay(row) for row in rows.mappings())

    @unbroken
    async def add(self, overlay: Overlay) -> None:
        """Keep a new one."""
        async with self._database.writing() as connection:
            await connection.execute(insert(overlays).values(_columns(overlay)))
            await count_change(connection)

    @unbroken
    async def lift(self, overlay_id: str, *, at: float, by: str) -> bool:
        """End one; whether there is such an overlay. The first lifting's time stays."""
        async with self._database.writing() as connection:
            one = overlays.c.id == overlay_id
            known = await connection.scalar(select(overlays.c.id).where(one))
            await connection.execute(
                update(overlays).where(one, overlays.c.lifted_at.is_(None)).values(lifted_at=at, lifted_by=by)
            )
            await count_change(connection)
            return known is not None


def _columns(overlay: Overlay) -> dict[str, Any]:
    return {
        **{name: getattr(overlay, name) for name in _PLAIN},
        **{name: getattr(overlay.scope, name) for name in _SCOPE},
        "kind": overlay.kind.value,
        "value": None if overlay.value is None else str(overlay.value),
    }


def _overlay(row: RowMapping) -> Overlay:
    kind = OverlayKind(row["kind"])
    return Overlay(
        **{name: row[name] for name in _PLAIN},
        scope=Scope(**{name: row[name] for name in _SCOPE}),
        kind=kind,
        value=_value(kind, row["value"]),
    )


def _value(kind: OverlayKind, text: str | None) -> Mode | int | None:
    if text is None:
        return None
    return int(text) if kind is OverlayKind.LOOKAHEAD else Mode(text)
