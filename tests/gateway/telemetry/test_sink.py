import logging
from collections.abc import Callable

import pytest

from gateway.telemetry.record import AccessRecord, StageRecord
from gateway.telemetry.sink import Telemetry
from tests.fakes.records import access, stage


class Sinks:
    """One of each sink; those named in `broken` raise."""

    def __init__(self, *broken: str) -> None:
        self._broken = broken
        self.seen: list[tuple[str, str]] = []
        self.dropped: dict[str, int] = {}
        self.telemetry = Telemetry(
            metrics=_Metrics(self),
            spans=_Both(self, "spans"),
            stage_log=self.take("stage_log"),
            access_log=self.take("access_log"),
            store_writer=_Store(self),
        )

    def take(self, name: str) -> Callable[[AccessRecord | StageRecord], None]:
        def taken(record: AccessRecord | StageRecord) -> None:
            if name in self._broken:
                raise RuntimeError(f"{name} is broken")
            self.seen.append((name, record.request_id))

        return taken


class _Both:
    def __init__(self, sinks: Sinks, name: str) -> None:
        self.access = sinks.take(name)
        self.stage = sinks.take(name)


class _Metrics(_Both):
    def __init__(self, sinks: Sinks) -> None:
        super().__init__(sinks, "metrics")
        self._sinks = sinks

    def dropped(self, sink: str, count: int = 1) -> None:
        self._sinks.take("counting")(access())
        self._sinks.dropped[sink] = self._sinks.dropped.get(sink, 0) + count


class _Store:
    def __init__(self, sinks: Sinks) -> None:
        self.put = sinks.take("store")


def test_a_request_reaches_metrics_spans_and_access_log() -> None:
    sinks = Sinks()
    sinks.telemetry.access(access(request_id="r"))
    assert sinks.seen == [("metrics", "r"), ("spans", "r"), ("access_log", "r")]


def test_a_stage_reaches_metrics_spans_stage_log_and_store() -> None:
    sinks = Sinks()
    sinks.telemetry.stage(stage(request_id="r"))
    assert sinks.seen == [("metrics", "r"), ("spans", "r"), ("stage_log", "r"), ("store", "r")]


@pytest.mark.parametrize("broken", ["metrics", "spans", "stage_log", "store"])
def test_a_broken_sink_is_counted_and_keeps_no_record_from_the_others(broken: str) -> None:
    sinks = Sinks(broken)
    sinks.telemetry.stage(stage())
    sinks.telemetry.stage(stage())
    assert sinks.dropped == {broken: 2}
    reached = [name for name, _ in sinks.seen if name != "counting"]
    assert len(reached) == 6
    assert broken not in reached


def test_a_broken_sink_is_named_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    sinks = Sinks("access_log")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            sinks.telemetry.access(access())
    assert [record.name for record in caplog.records] == ["gateway.telemetry.sink"]
    assert "access_log" in caplog.text


def test_nothing_is_raised_even_when_counting_fails_as_well() -> None:
    sinks = Sinks("metrics", "spans", "access_log", "counting")
    sinks.telemetry.access(access())
    assert sinks.seen == []
