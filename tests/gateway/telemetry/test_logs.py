import io
import logging
import threading
from types import MappingProxyType

import orjson
import pytest

from gateway.telemetry.logs import ACCESS_LOGGER, STAGE_LOGGER, ProcessLogs, RecordLog
from tests.fakes.records import access, stage


class Logged:
    """A process's log output, kept in memory."""

    def __init__(self, out: io.StringIO | None = None, waiting: int = 100) -> None:
        self.out, self.err = out or io.StringIO(), io.StringIO()
        self.dropped = 0
        self.logs = ProcessLogs(out=self.out, err=self.err, dropped=self._drop, waiting=waiting)

    def _drop(self, count: int) -> None:
        self.dropped += count

    def lines(self) -> list[dict[str, object]]:
        return [orjson.loads(line) for line in self.out.getvalue().splitlines()]


def test_each_request_is_one_json_line_on_stdout() -> None:
    logged = Logged()
    with logged.logs:
        RecordLog(ACCESS_LOGGER)(access(request_id="one"))
        RecordLog(ACCESS_LOGGER)(access(request_id="two", status=502))
    one, two = logged.lines()
    assert (one["log"], one["request_id"], one["status"]) == ("ace.access", "one", 200)
    assert (two["request_id"], two["status"]) == ("two", 502)
    assert logged.err.getvalue() == ""


def test_a_stage_line_has_all_that_a_stage_record_has() -> None:
    logged = Logged()
    curve = MappingProxyType({"1": MappingProxyType({"passes": 4, "passes_by_drafts": {0: 1, 1: 3}})})
    with logged.logs:
        RecordLog(STAGE_LOGGER)(stage(k_curve=curve))
    (line,) = logged.lines()
    assert line["log"] == "ace.stage"
    assert line["stage"] == "speculative_decoding"
    assert line["accepted_by_position"] == [8, 6, 4]
    assert line["k_curve"] == {"1": {"passes": 4, "passes_by_drafts": {"0": 1, "1": 3}}}
    assert line["multiplier"] is None


def test_a_clients_text_stays_on_one_short_line() -> None:
    logged = Logged()
    with logged.logs:
        RecordLog(ACCESS_LOGGER)(access(model="a\nb\ud800" + "c" * 1_000_000, path="/%s%d"))
    (line,) = logged.lines()
    assert str(line["model"]).startswith("a\nb?c")
    assert len(str(line["model"])) <= 512
    assert line["path"] == "/%s%d"


def test_lines_for_people_go_to_stderr() -> None:
    logged = Logged()
    with logged.logs:
        logging.getLogger("gateway.fleet").info("Backend 'b' is up.")
    assert logged.out.getvalue() == ""
    assert "INFO gateway.fleet: Backend 'b' is up." in logged.err.getvalue()


def test_loggers_are_given_back_as_they_were() -> None:
    names = (
        "gateway",
        "probes",
        "uvicorn",
        "opentelemetry",
        "opentelemetry.exporter",
        ACCESS_LOGGER,
        STAGE_LOGGER,
    )
    before = [(log.level, log.propagate, list(log.handlers)) for log in map(logging.getLogger, names)]
    with Logged().logs:
        pass
    after = [(log.level, log.propagate, list(log.handlers)) for log in map(logging.getLogger, names)]
    assert after == before


class StuckReader(io.StringIO):
    """Takes nothing until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.reached = threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        self.released.wait()
        return super().write(text)


def test_a_stuck_reader_holds_up_nobody_and_what_is_lost_is_counted() -> None:
    reader = StuckReader()
    logged = Logged(reader, waiting=3)
    log = RecordLog(ACCESS_LOGGER)
    with logged.logs:
        log(access(request_id="in the writer's hands"))
        assert reader.reached.wait(10)
        for i in range(10):
            log(access(request_id=f"r{i}"))
        assert logged.dropped == 7
        reader.released.set()
    assert [line["request_id"] for line in logged.lines()] == ["in the writer's hands", "r0", "r1", "r2"]
    assert logged.err.getvalue().count("being lost") == 1


class FullDisk(io.StringIO):
    """Refuses every write."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_counted_for_each_line_and_said_once() -> None:
    logged = Logged(FullDisk())
    log = RecordLog(ACCESS_LOGGER)
    with logged.logs:
        for _ in range(5):
            log(access())
    assert logged.dropped == 5
    assert logged.err.getvalue().count("No space left") == 1


def test_nothing_is_made_of_a_record_that_nobody_would_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orjson, "dumps", None)
    RecordLog("ace.access.unheard")(access())


def test_the_newest_lines_for_people_are_kept_and_no_text_of_an_exception() -> None:
    logged = Logged()
    with logged.logs:
        for number in range(1000):
            logging.getLogger("gateway.fleet").info("line %d", number)
        try:
            int("what a prompt said")
        except ValueError:
            logging.getLogger("gateway.proxy").exception("request r failed")
    logging.getLogger("gateway.fleet").warning("after the end")
    recent = logged.logs.recent()
    assert len(recent) == 200
    assert recent[-2].endswith("INFO gateway.fleet: line 999")
    assert recent[-1].endswith("ERROR gateway.proxy: request r failed (ValueError)")
    assert "what a prompt said" not in "".join(recent)
