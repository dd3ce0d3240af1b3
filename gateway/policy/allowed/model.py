"""Rows, tables and rulings: what the tables of request fields are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

UNKNOWN_FIELD = "unknown_field"
"""Reason of an allow-list for what it does not list."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """Whether a request with one field may be speculated.

    Attributes:
        reason: What a bypassed request's record says; None where the field may be there.
        why: The reason as a sentence, for readers of the table.
    """

    reason: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Row:
    """Fields with one ruling.

    Attributes:
        engines: The engines that it holds for, each with the version whose source or answers were read;
            other versions are held to the same. Empty: every engine, of any version.
    """

    ruling: Ruling
    fields: tuple[str, ...]
    engines: Mapping[str, str] = field(default_factory=dict)


def allowed(why: str, *fields: str) -> Row:
    """A row of fields that may be there, on every engine."""
    return Row(Ruling(None, why), fields)


def refused(reason: str, why: str, *fields: str, engines: Mapping[str, str] | None = None) -> Row:
    """A row of fields under which nothing is speculated."""
    return Row(Ruling(reason, why), fields, engines or {})


@dataclass(frozen=True)
class Table:
    """One executor's rows.

    Attributes:
        rows: No field is in two rows.
        otherwise: The ruling for a field in none of them.
    """

    rows: tuple[Row, ...]
    otherwise: Ruling

    @cached_property
    def row_of(self) -> Mapping[str, Row]:
        """Field to the row that lists it."""
        return {name: row for row in self.rows for name in row.fields}

    @cached_property
    def engines(self) -> frozenset[str]:
        """The engines that some row is about."""
        return frozenset(engine for row in self.rows for engine in row.engines)

    @cached_property
    def _by_engine(self) -> Mapping[str, Mapping[str, Ruling]]:
        return {engine: self._holding(engine) for engine in self.engines}

    @cached_property
    def _everything(self) -> Mapping[str, Ruling]:
        return {name: row.ruling for name, row in self.row_of.items()}

    def rulings(self, engine: str) -> Mapping[str, Ruling]:
        """Field to ruling for one engine; one that no row is about may be any, so every row holds for it."""
        return self._by_engine.get(engine, self._everything)

    def _holding(self, engine: str) -> Mapping[str, Ruling]:
        return {
            name: row.ruling for name, row in self.row_of.items() if not row.engines or engine in row.engines
        }
