"""Telemetry: hands every record to every sink, whatever becomes of the others."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from gateway.telemetry.record import AccessRecord, StageRecord

_log = logging.getLogger(__name__)
_Record = TypeVar("_Record", AccessRecord, StageRecord)


class RecordSink(Protocol):
    """Takes both kinds of records."""

    def access(self, record: AccessRecord) -> None:
        """Take a request's record."""

    def stage(self, record: StageRecord) -> None:
        """Take a stage's record."""


class CountingSink(RecordSink, Protocol):
    """A sink that also counts what others could not take."""

    def dropped(self, sink: str, count: int = 1) -> None:
        """Count records that `sink` could not take."""


class StageStore(Protocol):
    """Keeps stage records; returns at once."""

    def put(self, record: StageRecord) -> None:
        """Queue a record to be stored."""


class Telemetry:
    """Where the data plane and the shadow feed leave their records.

    Neither method raises or waits: a sink that fails is counted, and named in the log once.
    """

    def __init__(
        self,
        *,
        metrics: CountingSink,
        spans: RecordSink,
        stage_log: Callable[[StageRecord], None],
        access_log: Callable[[AccessRecord], None],
        store_writer: StageStore,
    ) -> None:
        self._metrics = metrics
        self._access: dict[str, Callable[[AccessRecord], None]] = {
            "metrics": metrics.access,
            "spans": spans.access,
            "access_log": access_log,
        }
        self._stage: dict[str, Callable[[StageRecord], None]] = {
            "metrics": metrics.stage,
            "spans": spans.stage,
            "stage_log": stage_log,
            "store": store_writer.put,
        }
        self._failed: set[str] = set()

    def access(self, record: AccessRecord) -> None:
        """Leave a request's record."""
        for name, take in self._access.items():
            self._give(name, take, record)

    def stage(self, record: StageRecord) -> None:
        """Leave a stage's record."""
        for name, take in self._stage.items():
            self._give(name, take, record)

    def _give(self, name: str, take: Callable[[_Record], None], record: _Record) -> None:
        try:
            take(record)
        except Exception:  # noqa: BLE001 a request must not fail because something that watches it did
            self._lost(name)

    def _lost(self, name: str) -> None:
        if name not in self._failed:
            self._failed.add(name)
            _log.exception(
                "Records are being lost: %s fails. Said once; see ace_records_dropped_total.", name
            )
        with contextlib.suppress(Exception):
            self._metrics.dropped(name)
