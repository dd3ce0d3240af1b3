"""docs/losslessness.md says what the tables say, and names tests that exist."""

import re
from pathlib import Path

from gateway.policy.allowed import TABLES
from gateway.policy.allowed.document import BEGIN, END, renewed
from gateway.policy.allowed.known import KNOWN

ROOT = Path(__file__).parents[4]
DOCUMENT = (ROOT / "docs" / "losslessness.md").read_text(encoding="utf-8")


def test_the_page_is_the_generated_one() -> None:
    """Renew it with `python -m gateway.policy.allowed.document docs/losslessness.md`."""
    assert renewed(DOCUMENT) == DOCUMENT


def test_only_what_lies_between_the_markers_is_written() -> None:
    text = f"before\n{BEGIN}stale\n{END}after\n"
    assert renewed(text).startswith(f"before\n{BEGIN}")
    assert renewed(text).endswith(f"{END}after\n")
    assert "stale" not in renewed(text)


def test_every_known_field_has_its_line() -> None:
    cells = r" [^|]+ \|" * (1 + len(TABLES))
    lines = set(re.findall(rf"^\| `([^`]+)` \|{cells}$", DOCUMENT, re.MULTILINE))
    assert lines >= {field for known in KNOWN for field in known.fields}


def test_every_test_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(tests/[^`]+\.py)`", DOCUMENT))
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).is_file()] == []
