from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftrunner.embedded.text import AnswerText as EngineText
from gateway.errors import BackendError
from gateway.loop.text import LONGEST_WINDOW, AnswerText, Token
from tests.fakes.byte_target import END, SPECIAL, TURN, ids_of, text_of

PROMPT = (*ids_of("Write."), TURN)


async def spell(ids: Sequence[int]) -> str:
    return text_of(ids, special=True)


def as_tokens(ids: Sequence[int]) -> list[Token]:
    """As a strategy tells of them: silent where an engine shows nothing of a token by itself."""

    def silent(token: int) -> bool:
        return token == SPECIAL or "\ufffd" in text_of([token], special=False)

    return [Token(token, ends=token == END, silent=silent(token)) for token in ids]


@dataclass(frozen=True)
class Written:
    text: str
    matched: str | None
    tokens: int


def plainly(ids: Sequence[int], stops: Sequence[str]) -> Written:
    """What the embedded backend makes of the same tokens, one at a time."""
    text = EngineText(lambda some: text_of(some, special=False), stops)
    for count, token in enumerate(ids, start=1):
        matched = None if token == END else text.push(token)
        if matched is not None:
            return Written(text.take(), matched, count)
    text.finish()
    return Written(text.take(), None, len(ids))


async def in_pieces(
    ids: Sequence[int], stops: Sequence[str], sizes: Sequence[int], *, shows_halves: bool = True
) -> tuple[Written, list[str]]:
    text = await AnswerText.after(PROMPT, spell=spell, stops=stops, shows_halves=shows_halves)
    shown, rest, turn = [], as_tokens(ids), 0
    while rest and text.matched is None:
        size = sizes[turn % len(sizes)]
        piece, rest, turn = rest[:size], rest[size:], turn + 1
        shown.append(await text.push(piece))
    shown.append(await text.finish())
    return Written("".join(shown), text.matched, text.tokens), shown


CHARACTERS = ["a", "b", "ab", " ", "\n", "é", "日本", "😀", "\ufffd", "<", "END"]
answers = st.lists(
    st.one_of(st.sampled_from([list(ids_of(text)) for text in CHARACTERS]), st.just([SPECIAL]),
              st.integers(0, 255).map(lambda byte: [byte])), max_size=14
).map(lambda pieces: [token for piece in pieces for token in piece])  # fmt: skip
stop_strings = st.lists(st.sampled_from(["ab", "ba", "b 日", "日", "😀a", "END", "a", "\ufffd"]), max_size=3)
sizes = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@given(answers, stop_strings, sizes, st.booleans())
async def test_text_and_length_are_the_engines_however_the_tokens_come(
    ids: list[int], stops: list[str], sizes: list[int], ended: bool
) -> None:
    whole = [*ids, END] if ended else ids
    written, _ = await in_pieces(whole, stops, sizes)
    assert written == plainly(whole, stops)


@given(answers, sizes)
async def test_no_piece_ends_inside_a_character(ids: list[int], sizes: list[int]) -> None:
    _, shown = await in_pieces(ids, [], sizes)
    assert not any(piece.endswith("\ufffd") for piece in shown[:-1])


@given(answers, stop_strings, sizes)
async def test_what_is_shown_is_never_taken_back(ids: list[int], stops: list[str], sizes: list[int]) -> None:
    """Nothing is shown that may yet become a stop string, or another character."""
    _, shown = await in_pieces(ids, stops, sizes)
    whole = plainly(ids, stops).text
    assert all(whole.startswith("".join(shown[:count])) for count in range(len(shown) + 1))


@pytest.mark.parametrize(("shows_halves", "text"), [(True, "日\ufffd"), (False, "日")])
async def test_half_a_character_at_the_end_is_shown_as_the_engine_does(shows_halves: bool, text: str) -> None:
    ids = ids_of("日本")[:5]
    written, _ = await in_pieces(ids, [], [4], shows_halves=shows_halves)
    assert written == Written(text, None, 5)


async def test_only_what_is_spelled_as_a_special_token_is_left_out() -> None:
    """A server that shows no text of its own costs no text here."""
    text = await AnswerText.after(PROMPT, spell=spell, stops=(), shows_halves=True)
    ids = (*ids_of("<b> "), SPECIAL, *ids_of("日"))
    shown = [await text.push([Token(token, silent=True)]) for token in ids]
    assert "".join(shown) == "<b> 日"


async def test_a_text_longer_than_the_window_is_spelled_in_parts() -> None:
    asked: list[int] = []

    async def counted(ids: Sequence[int]) -> str:
        asked.append(len(ids))
        return text_of(ids, special=True)

    answer = "ein 日本 😀 Wort, " * 40
    text = await AnswerText.after(PROMPT, spell=counted, stops=(), shows_halves=True)
    shown = [await text.push(as_tokens(ids_of(answer)[at : at + 3])) for at in range(0, 3 * len(answer), 3)]
    assert "".join([*shown, await text.finish()]) == answer
    assert max(asked) <= LONGEST_WINDOW + 3 + 4


async def test_the_first_token_is_spelled_as_what_follows_the_prompt() -> None:
    """A tokenizer that strips the space before a text's first word."""

    async def stripping(ids: Sequence[int]) -> str:
        return text_of(ids, special=True).removeprefix(" ")

    text = await AnswerText.after(PROMPT, spell=stripping, stops=(), shows_halves=True)
    assert await text.push(as_tokens(ids_of(" one"))) == " one"


async def test_half_a_character_at_the_prompts_end_is_not_completed_in_the_answer() -> None:
    prompt = ids_of("日")[:2]
    text = await AnswerText.after(prompt, spell=spell, stops=(), shows_halves=True)
    assert await text.push(as_tokens([*ids_of("日")[2:], *ids_of("a")])) == "\ufffda"


async def test_a_tokenizer_that_changes_its_mind_is_an_error() -> None:
    """`/detokenize` that tidies spaces up: " ." becomes "." once there is a full stop."""

    async def tidying(ids: Sequence[int]) -> str:
        return text_of(ids, special=True).replace(" .", ".")

    text = await AnswerText.after(PROMPT, spell=tidying, stops=(), shows_halves=True)
    await text.push(as_tokens(ids_of("so ")))
    with pytest.raises(BackendError, match="spells"):
        await text.push(as_tokens(ids_of(".")))
