"""docs/reference-policy.md says what the models say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.__main__ import COMMANDS
from gateway.policy import document
from gateway.policy.schema import policy_schema
from gateway.settings import ALLOWED
from gateway.telemetry.metrics import GAUGES

DOCUMENT = (Path(__file__).parents[3] / "docs" / "reference-policy.md").read_text(encoding="utf-8")


def test_the_page_is_the_generated_one() -> None:
    """Renew it with `python -m gateway.policy.document docs/reference-policy.md`."""
    assert document.renewed(DOCUMENT) == DOCUMENT


def test_every_key_of_a_policy_has_its_line_and_a_meaning() -> None:
    schema = policy_schema()
    parts = [schema, *(part for part in schema["$defs"].values() if "properties" in part)]
    keys = {key for part in parts for key in part["properties"]}
    lines = dict(re.findall(r"^\| `(\w+)` \|.* \| ([^|]+) \|$", DOCUMENT, re.MULTILINE))
    assert lines.keys() >= keys
    assert all(lines[key].strip() for key in keys)


def test_a_model_without_a_place_on_the_page_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_PLACES", {"": "top level"})
    with pytest.raises(ValueError, match="no place is known"):
        document.renewed(DOCUMENT)


def test_every_variable_gauge_and_command_that_the_page_names_is_there() -> None:
    variables = {name.removeprefix("ACE_").lower() for name in re.findall(r"ACE_[A-Z_]+", DOCUMENT)}
    assert variables <= set(ALLOWED)
    assert set(re.findall(r"`(ace_(?:policy|kill)\w+)`", DOCUMENT)) <= set(GAUGES)
    commands = {words.split()[0] for words in re.findall(r"`ace ([^`]+)`", DOCUMENT)}
    assert commands <= set(COMMANDS)
