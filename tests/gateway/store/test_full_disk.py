"""A disk that takes no more: what cannot be kept is counted, nothing stops, and it goes on by itself."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.store.model import StageQuery
from gateway.store.writer import StageWriter
from tests.fakes.records import stage
from tests.fakes.stores import opened_store
from tests.gateway.telemetry.test_metrics import Gateway

QUEUE = 50


@contextmanager
def no_file_grows_beyond(size: int) -> Iterator[None]:
    """As if the disk were full: the operating system refuses to write further."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def size_of_log(folder: Path) -> int:
    return next(folder.rglob("*-wal")).stat().st_size


async def test_records_beyond_the_queue_are_counted_and_the_rest_is_written_once_there_is_room(
    tmp_path: Path,
) -> None:
    gateway = Gateway()
    async with opened_store(tmp_path) as store:
        writer = StageWriter(
            stages=store.stages,
            on_drop=lambda lost: gateway.metrics.dropped("store", lost),
            queue_limit=QUEUE,
        )
        with no_file_grows_beyond(size_of_log(tmp_path)):
            for number in range(3 * QUEUE):
                writer.put(stage(request_id=f"r{number}"))
            assert not await writer.flush()
            assert await store.stages.find(StageQuery()) == [], "what is there can still be read"
        assert gateway.value("ace_records_dropped_total", sink="store") == 2 * QUEUE
        assert await writer.flush()
        assert len(await store.stages.find(StageQuery())) == QUEUE
        await writer.close()
    assert gateway.value("ace_records_dropped_total", sink="store") == 2 * QUEUE
