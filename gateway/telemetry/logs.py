"""Log lines: one JSON line per record on stdout, plain lines for people on stderr. Never prompt text."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from types import TracebackType
from typing import Self, TextIO

import orjson

from gateway.telemetry.record import AccessRecord, StageRecord, clipped

ACCESS_LOGGER = "ace.access"
STAGE_LOGGER = "ace.stage"
_FOR_PEOPLE = {
    "gateway": logging.INFO,
    "probes": logging.INFO,
    "uvicorn": logging.WARNING,
    "opentelemetry": logging.ERROR,
    # It names every batch that fails; gateway.telemetry.spans says when that begins and ends.
    "opentelemetry.exporter": logging.CRITICAL,
}
_FIELDS = {kind: tuple(item.name for item in fields(kind)) for kind in (AccessRecord, StageRecord)}

_log = logging.getLogger(__name__)


class RecordLog:
    """Writes each record as one JSON line on a logger; each line carries the logger's name as `log`."""

    def __init__(self, logger: str) -> None:
        self._logger = logging.getLogger(logger)

    def __call__(self, record: AccessRecord | StageRecord) -> None:
        """Log one record."""
        if self._logger.isEnabledFor(logging.INFO):
            name, line = self._logger.name, self._line(record)
            # Handled directly: to find out who calls takes longer than all the rest.
            self._logger.handle(logging.LogRecord(name, logging.INFO, __file__, 0, line, None, None))

    def _line(self, record: AccessRecord | StageRecord) -> str:
        values: dict[str, object] = {"log": self._logger.name}
        for name in _FIELDS[type(record)]:
            value = getattr(record, name)
            values[name] = clipped(value) if isinstance(value, str) else value
        return orjson.dumps(values, dict, orjson.OPT_NON_STR_KEYS).decode()


class ProcessLogs:
    """The log output of this process, while entered as a context.

    Lines of records are written by a thread, so that a slow reader of stdout never holds up a request;
    lines beyond `waiting` are dropped and counted.

    Args:
        out: Where records go.
        err: Where lines for people go.
        dropped: Told how many lines were lost, from any thread.
        waiting: Lines that may wait for the thread.
    """

    def __init__(
        self, *, out: TextIO, err: TextIO, dropped: Callable[[int], None], waiting: int = 20_000
    ) -> None:
        self._lines = _Lines(out, dropped, waiting)
        self._records = _ToLines(self._lines)
        self._plain = logging.StreamHandler(err)
        self._plain.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._recent = _Recent()
        self._attached = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start to write."""
        for name, level in _FOR_PEOPLE.items():
            self._attach(name, self._plain, level)
            logging.getLogger(name).addHandler(self._recent)
            self._attached.callback(logging.getLogger(name).removeHandler, self._recent)
        self._lines.start()
        self._attached.callback(self._lines.close)
        for name in (ACCESS_LOGGER, STAGE_LOGGER):
            self._attach(name, self._records, logging.INFO, propagate=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take no more records, write those that wait, and give the loggers back as they were."""
        self._attached.close()

    def recent(self) -> list[str]:
        """The newest lines for people, oldest first; of exceptions only the kind: they may quote anything."""
        return list(self._recent.lines)

    def _attach(self, name: str, handler: logging.Handler, level: int, *, propagate: bool = True) -> None:
        logger = logging.getLogger(name)
        before = (logger.level, logger.propagate)

        def detach() -> None:
            logger.removeHandler(handler)
            logger.level, logger.propagate = before

        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
        self._attached.callback(detach)


class _Recent(logging.Handler):
    """Keeps a few lines for whoever asks."""

    _LINES = 200

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=self._LINES)

    def emit(self, record: logging.LogRecord) -> None:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        kind = f" ({record.exc_info[0].__name__})" if record.exc_info and record.exc_info[0] else ""
        self.lines.append(f"{at} {record.levelname} {record.name}: {clipped(record.getMessage())}{kind}")


class _ToLines(logging.Handler):
    """Hands a record's message to the writing thread; needs none of logging's own locking."""

    def __init__(self, lines: _Lines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.put(record.getMessage())


class _Lines:
    """A bounded queue of lines and the thread that writes them."""

    _PATIENCE_S = 2.0

    def __init__(self, out: TextIO, dropped: Callable[[int], None], waiting: int) -> None:
        self._out, self._dropped = out, dropped
        self._queue: queue.Queue[str | None] = queue.Queue(waiting)
        self._thread = threading.Thread(target=self._write_all, name="ace-logs", daemon=True)
        self._failed = False

    def start(self) -> None:
        self._thread.start()

    def put(self, line: str) -> None:
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self._lost("the reader of stdout is too slow")

    def close(self) -> None:
        """Write what waits; a reader that has stopped reading is given up after a short while."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=self._PATIENCE_S)
        self._thread.join(self._PATIENCE_S)

    def _write_all(self) -> None:
        for line in iter(self._queue.get, None):
            try:
                # Flushed one by one: worker processes share stdout, and only short writes stay whole.
                self._out.write(f"{line}\n")
                self._out.flush()
            except (OSError, ValueError) as error:  # ValueError: the stream was closed
                self._lost(repr(error))

    def _lost(self, why: str) -> None:
        self._dropped(1)
        if not self._failed:
            self._failed = True
            _log.error("Access and stage lines are being lost: %s. Said once; see the metrics.", why)
