from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftrunner.embedded.text import AnswerText, Detokenizer, StopStrings

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def as_bytes(ids: Sequence[int]) -> str:
    """A tokenizer with one token per byte."""
    return bytes(ids).decode(errors="replace")


def as_words(ids: Sequence[int]) -> str:
    """A tokenizer that spells the first word of a text without the space before it."""
    return "".join(f" {'abc'[i]}" for i in ids).removeprefix(" ")


def pieces(text: Detokenizer, ids: Sequence[int]) -> list[str]:
    return [text.push(token) for token in ids]


def pushed(stops: Sequence[str], parts: Sequence[str]) -> tuple[str, str | None]:
    """What is shown of `parts`, and what stopped it."""
    cut = StopStrings(stops)
    shown = ""
    for part in parts:
        shown += cut.push(part)
        if cut.matched is not None:
            return shown, cut.matched
    return shown + cut.release(), None


def test_a_character_is_shown_with_its_last_byte() -> None:
    assert pieces(Detokenizer(as_bytes), "a€b".encode()) == ["a", "", "", "€", "b"]


def test_a_character_that_is_never_completed_is_shown_once_at_the_end() -> None:
    text = Detokenizer(as_bytes)
    assert pieces(text, "a€".encode()[:-1]) == ["a", "", ""]
    assert text.tail() == REPLACEMENT


def test_nothing_is_left_at_the_end_of_whole_characters() -> None:
    text = Detokenizer(as_bytes)
    assert pieces(text, "né".encode()) == ["n", "", "é"]
    assert text.tail() == ""


def test_a_word_keeps_the_space_that_only_a_first_word_loses() -> None:
    assert pieces(Detokenizer(as_words), [0, 1, 2]) == ["a", " b", " c"]


@given(st.binary(max_size=24))
def test_pieces_and_tail_are_the_whole_text_whatever_the_bytes(ids: bytes) -> None:
    text = Detokenizer(as_bytes)
    assert "".join(pieces(text, ids)) + text.tail() == as_bytes(ids)


@given(st.text(max_size=12))
def test_no_piece_of_a_sound_text_holds_half_a_character(sound: str) -> None:
    text = Detokenizer(as_bytes)
    shown = pieces(text, sound.encode())
    assert "".join(shown) + text.tail() == sound
    assert all(piece in {"", *sound} for piece in shown)


@pytest.mark.parametrize("split", range(1, 6))
def test_a_stop_string_may_span_pieces(split: int) -> None:
    text = "say STOP now"
    at = text.index("STOP")
    assert pushed(["STOP"], [text[: at + split], text[at + split :]]) == ("say ", "STOP")


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), max_size=4))
def test_where_a_text_stops_does_not_depend_on_how_it_is_split(text: str, stops: list[str]) -> None:
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    shown, matched = pushed(stops, list(text))
    assert pushed(stops, [text]) == (shown, matched)
    if ends:
        assert matched is not None
        assert shown + matched == text[: min(ends)]
    else:
        assert (shown, matched) == (text, None)


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    stops = StopStrings(["</answer>"])
    assert stops.push("1 < 2") == "1 < 2"
    assert stops.push(" </") == " "
    assert stops.push("b>") == "</b>"


def test_what_was_held_back_is_part_of_an_answer_that_ends_without_the_stop_string() -> None:
    text = AnswerText(as_bytes, ["stop"])
    for token in b"non-st":
        assert text.push(token) is None
    assert text.take() == "non-"
    text.finish()
    assert text.take() == "st"


def test_nothing_from_the_stop_string_on_is_part_of_the_answer() -> None:
    text = AnswerText(as_bytes, ["st"])
    assert [text.push(token) for token in b"a st"] == [None, None, None, "st"]
    text.finish()
    assert text.take() == "a "
