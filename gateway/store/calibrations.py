"""Calibrations of the gateway's loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import RowMapping

from gateway.evidence.loop_costs import Calibration, CostKey
from gateway.store.database import Database, insert_or, unbroken
from gateway.store.tables import calibrations

_KEY = ("backend", "model", "strategy", "drafter", "band", "instance")


class CalibrationRows:
    """The calibrations table; one for each key, the latest."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @unbroken
    async def all(self) -> tuple[Calibration, ...]:
        """Every calibration, expired or not."""
        async with self._database.reading() as connection:
            rows = await connection.execute(
                select(calibrations).order_by(*(calibrations.c[name] for name in _KEY))
            )
            return tuple(_calibration(row) for row in rows.mappings())

    @unbroken
    async def keep(self, calibration: Calibration) -> None:
        """Keep a new one in place of an older one with the same key."""
        measured = _measured(calibration)
        async with self._database.writing() as connection:
            first = insert_or(connection, calibrations).values(**asdict(calibration.key), **measured)
            await connection.execute(
                first.on_conflict_do_update(
                    index_elements=[calibrations.c[name] for name in _KEY], set_=measured
                )
            )


def _measured(calibration: Calibration) -> dict[str, Any]:
    return {
        "measured_at": calibration.measured_at,
        "expires_at": calibration.expires_at,
        "context_tokens": calibration.context_tokens,
        "plain_seconds": calibration.plain_seconds,
        "verify_seconds": _by_text(calibration.verify_seconds),
        "draft_seconds": _by_text(calibration.draft_seconds),
    }


def _calibration(row: RowMapping) -> Calibration:
    return Calibration(
        key=CostKey(**{name: row[name] for name in _KEY}),
        measured_at=row["measured_at"],
        expires_at=row["expires_at"],
        context_tokens=row["context_tokens"],
        plain_seconds=row["plain_seconds"],
        verify_seconds=_by_number(row["verify_seconds"]),
        draft_seconds=_by_number(row["draft_seconds"]),
    )


def _by_text(seconds: Mapping[int, float]) -> dict[str, float]:
    """JSON has only text for keys."""
    return {str(drafts): value for drafts, value in seconds.items()}


def _by_number(seconds: Mapping[str, float]) -> dict[int, float]:
    return {int(drafts): value for drafts, value in seconds.items()}
