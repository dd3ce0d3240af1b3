import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from gateway.telemetry import document
from gateway.telemetry.document import LOGS, PAGES, LogField, log_fields, renewed
from gateway.telemetry.logs import ProcessLogs, RecordLog
from gateway.telemetry.metrics import COUNTERS, GAUGES, HISTOGRAMS
from gateway.telemetry.record import AccessRecord, StageRecord
from tests.fakes.records import access, stage

DOCS = Path(__file__).parents[3] / "docs"
PYTHON: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_what_the_code_says_now(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert renewed(text, PAGES[page]()) == text, "run `python -m gateway.telemetry.document docs`"
    assert text.count(document.BEGIN) == 1


def test_renewing_keeps_what_a_person_wrote() -> None:
    text = f"before\n{document.BEGIN}old\n{document.END}after\n"
    assert renewed(text, "new") == f"before\n{document.BEGIN}\nnew\n\n{document.END}after\n"


def test_every_metric_is_on_the_page() -> None:
    page = (DOCS / "reference-metrics.md").read_text(encoding="utf-8")
    for name in (*COUNTERS, *HISTOGRAMS, *GAUGES):
        assert f"| `{name}` |" in page


def test_the_formulas_name_metrics_that_there_are() -> None:
    import re

    page = (DOCS / "reference-metrics.md").read_text(encoding="utf-8")
    histograms = {f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")}
    named = set(re.findall(r"\bace_[a-z_]+\b", page)) - {"ace_spec_"}
    assert named <= {*COUNTERS, *GAUGES, *HISTOGRAMS, *histograms}


@pytest.mark.parametrize("record", LOGS.values())
def test_every_field_of_a_record_is_described(record: type) -> None:
    assert [item.name for item in log_fields(record)] == [item.name for item in fields(record)]
    assert all(item.meaning for item in log_fields(record))


def test_a_field_that_nobody_described_is_named() -> None:
    @dataclass
    class Undescribed:
        """A record.

        Attributes:
            old: Gone.
        """

        new: int

    with pytest.raises(ValueError, match="'new', 'old'"):
        log_fields(Undescribed)


def written(logger: str, record: AccessRecord | StageRecord) -> dict[str, Any]:
    out = io.StringIO()
    with ProcessLogs(out=out, err=io.StringIO(), dropped=lambda lines: None):
        RecordLog(logger)(record)
    line: dict[str, Any] = json.loads(out.getvalue())
    return line


def complaints(line: Mapping[str, Any], described: tuple[LogField, ...]) -> list[str]:
    """What in a line is not as its page says."""
    if list(line) != ["log", *(item.name for item in described)]:
        return [f"fields {list(line)}"]
    return [
        f"{item.name} is {line[item.name]!r}, not {item.kind}"
        for item in described
        if not (
            isinstance(line[item.name], PYTHON[item.kind]) or (item.when_null and line[item.name] is None)
        )
    ]


CURVE = {"1": {"passes": 3, "acceptance_rate": None, "passes_by_drafts": {0: 1}}}


@pytest.mark.parametrize(
    ("logger", "record"),
    [
        ("ace.access", AccessRecord(request_id="untouched")),
        ("ace.access", access(temperature=0.5, stream=True, traceparent="00-1-2-01")),
        ("ace.stage", stage()),
        ("ace.stage", stage(multiplier=1.5, looping=False, k_curve=CURVE, compared={"suffix": {}})),
        (
            "ace.stage",
            StageRecord(request_id="r", at=1.0, mode="prod", action="bypass", model="", backend="", rule=""),
        ),
    ],
)
def test_a_line_is_as_its_page_says(logger: str, record: AccessRecord | StageRecord) -> None:
    assert complaints(written(logger, record), log_fields(LOGS[logger])) == []


def test_a_line_that_differs_from_its_page_is_noticed() -> None:
    line = written("ace.access", access())
    described = log_fields(AccessRecord)
    assert complaints(line | {"status": "200"}, described) == ["status is '200', not integer"]
    assert complaints(line | {"status": None}, described) == ["status is None, not integer"]
    assert complaints(line | {"prompt": "x"}, described)
