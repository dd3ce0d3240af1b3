"""Every table of request fields: complete, without contradictions, and stricter from executor to executor."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chat

from gateway.policy.allowed import TABLES, UNKNOWN_FIELD
from gateway.policy.allowed.known import KNOWN, OPENAI, KnownFields
from gateway.policy.ways import EXECUTORS

ENGINES = sorted({"openai", *(engine for table in TABLES.values() for engine in table.engines)})


def test_every_executor_has_its_table() -> None:
    assert tuple(TABLES) == EXECUTORS


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.server)
@pytest.mark.parametrize("executor", TABLES)
def test_every_known_field_is_decided(executor: str, known: KnownFields) -> None:
    """By a row of its own, or because the table leaves what it does not list to the engine."""
    table = TABLES[executor]
    undecided = known.fields - table.row_of.keys() if table.otherwise.reason else frozenset()
    assert undecided == frozenset()


def test_an_executor_outside_the_engine_allows_only_what_it_lists() -> None:
    assert TABLES["gateway_loop"].otherwise.reason == UNKNOWN_FIELD


@pytest.mark.parametrize("executor", TABLES)
def test_no_field_is_in_two_rows_and_every_row_says_why(executor: str) -> None:
    rows = TABLES[executor].rows
    fields = Counter(name for row in rows for name in row.fields)
    assert [name for name, times in fields.items() if times > 1] == []
    assert all(row.fields and row.ruling.why for row in rows)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_executor_refuses_those_after_it_refuse_too(engine: str) -> None:
    """`decide` asks only the first executor that is possible, and relies on this."""
    for earlier, later in pairwise(TABLES.values()):
        refused = {name for name, ruling in earlier.rulings(engine).items() if ruling.reason}
        rulings = later.rulings(engine)
        assert {name for name in refused if not rulings.get(name, later.otherwise).reason} == set()


def test_the_openai_list_is_what_the_sdk_can_send() -> None:
    forms = [
        *(chat.CompletionCreateParamsNonStreaming, chat.CompletionCreateParamsStreaming),
        *(completions.CompletionCreateParamsNonStreaming, completions.CompletionCreateParamsStreaming),
    ]
    assert {name for form in forms for name in form.__annotations__} == OPENAI.fields
