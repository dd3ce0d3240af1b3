"""What may be speculated: one table, executor x engine x version x request field.

A field that an executor may not speculate under is never removed from the request; the request is served
plainly instead, and its record says why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gateway.policy.allowed.gateway_loop import GATEWAY_LOOP
from gateway.policy.allowed.in_engine import IN_ENGINE
from gateway.policy.allowed.model import UNKNOWN_FIELD, Ruling, Table

TABLES: Mapping[str, Table] = {"in_engine": IN_ENGINE, "gateway_loop": GATEWAY_LOOP}
"""Executor to its table."""


def why_bypassed(executor: str, engine: str, active: Collection[str]) -> tuple[str, str] | None:
    """The first field, by name, that `executor` may not speculate under, and the reason; None without one.

    Args:
        executor: A key of TABLES.
        engine: The engine's software, as the table names it; one that it does not name is held to
            every engine's rows.
        active: The request's fields, as `gateway.policy.fields.active_fields` gives them.
    """
    rulings = TABLES[executor].rulings(engine)
    for name in sorted(active):
        ruling = rulings.get(name, TABLES[executor].otherwise)
        if ruling.reason is not None:
            return name, ruling.reason
    return None


__all__ = ["TABLES", "UNKNOWN_FIELD", "Ruling", "Table", "why_bypassed"]
