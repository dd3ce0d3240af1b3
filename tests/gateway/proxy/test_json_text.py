from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.json_text import insert_members, members, read_json, replace_members

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
objects = st.dictionaries(st.text(), values, max_size=5)
spellings = st.sampled_from(
    [
        lambda value: json.dumps(value).encode(),
        lambda value: json.dumps(value, ensure_ascii=False, indent=2).encode(errors="surrogatepass"),
        lambda value: b" \n" + json.dumps(value, separators=(",", ":")).encode() + b"\t",
    ]
)


@given(objects, spellings)
def test_members_are_those_of_the_object(value: dict[str, object], spell: object) -> None:
    text = spell(value)  # type: ignore[operator]
    found = [(m.name, json.loads(text[m.value : m.end])) for m in members(text)]
    assert found == list(value.items())


@given(objects, spellings)
def test_replacing_changes_the_named_members_only(value: dict[str, object], spell: object) -> None:
    text = spell(value)  # type: ignore[operator]
    named = dict.fromkeys(list(value)[::2], b'{"new":1}')
    assert json.loads(replace_members(text, named)) == value | {name: {"new": 1} for name in named}
    assert replace_members(text, {}) == text


@given(objects, spellings)
def test_inserting_adds_members_and_leaves_every_byte(value: dict[str, object], spell: object) -> None:
    text = spell(value)  # type: ignore[operator]
    inserted = insert_members(text, {"\x00new": b"[1]", "\x00newer": b"2"})
    assert json.loads(inserted) == {"\x00new": [1], "\x00newer": 2} | value
    assert inserted.startswith(text[: text.index(b"{") + 1])
    assert inserted.endswith(text[text.index(b"{") + 1 :])
    assert insert_members(text, {}) == text


def test_every_duplicate_is_replaced_however_its_name_is_spelled() -> None:
    text = rb'{"a":1,"\u0061":{"a":2},"b":"\"a\":3"}'
    assert replace_members(text, {"a": b"0"}) == rb'{"a":0,"\u0061":0,"b":"\"a\":3"}'


def test_a_large_string_is_stepped_over() -> None:
    text = b'{"image":"' + b'A\\"{' * 1_000_000 + b'","a":1}'
    assert [m.name for m in members(text)] == ["image", "a"]


@pytest.mark.parametrize("text", [b'{"x":NaN}', b'"\\ud800"', b"123456789012345678901234567890"])
def test_what_python_servers_take_is_read(text: bytes) -> None:
    read_json(text)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b'\xef\xbb\xbf{"a":1}', b"[" * 100_000, b"9" * 10_000])
def test_what_is_no_json_is_one_kind_of_error(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        read_json(text)
