"""Registered tokenizers: what is loaded from which file, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError

from gateway.errors import TokenizerUnusable
from gateway.fleet.tokenizer import check_tokenizer, load_tokenizer
from tests.fakes.tokenizer_files import TEMPLATE, tokenizer_files

HELLO = [{"role": "user", "content": "say it"}]

texts = st.text(st.characters(codec="utf-8"), max_size=40) | st.sampled_from(["<|im_end|>", "a  b\n", " é €"])
turns: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.builds(dict, role=st.sampled_from(["system", "user", "assistant"]), content=texts),
    min_size=1,
    max_size=4,
)


def test_a_text_becomes_ids_with_or_without_what_the_model_wants_around_it(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_files(tmp_path)))
    assert tokenizer.ids_of("a b </s>", add_special_tokens=False) == (6, 7, 1)
    assert tokenizer.ids_of("a b", add_special_tokens=True) == (0, 6, 7)


def test_long_texts_are_neither_cut_nor_filled_up_whatever_the_file_says(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_files(tmp_path)))
    assert len(tokenizer.ids_of("a " * 50, add_special_tokens=False)) == 50
    assert len(tokenizer.ids_of("a", add_special_tokens=False)) == 1


def test_a_folder_and_its_file_are_the_same_tokenizer(tmp_path: Path) -> None:
    folder = tokenizer_files(tmp_path)
    for path in (folder, folder / "tokenizer.json"):
        assert load_tokenizer(str(path)).text_of(HELLO) == "<s><user> say it </s>\n"


def test_the_template_may_stand_in_the_settings(tmp_path: Path) -> None:
    folder = tokenizer_files(
        tmp_path, template=None, chat_template="{{ messages[0].content }}{{ eos_token }}"
    )
    assert load_tokenizer(str(folder)).text_of(HELLO) == "say it</s>"


def test_the_template_file_wins_over_the_settings(tmp_path: Path) -> None:
    folder = tokenizer_files(tmp_path, template="file", chat_template="settings")
    assert load_tokenizer(str(folder)).text_of(HELLO) == "file"


def test_a_template_of_its_own_for_tools_is_taken_when_there_are_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    tokenizer = load_tokenizer(str(tokenizer_files(tmp_path, template=None, chat_template=named)))
    assert tokenizer.text_of(HELLO) == "plain"
    assert tokenizer.text_of(HELLO, tools=[{"name": "clock"}]) == "tools"


def test_a_model_without_a_template_spells_no_conversation(tmp_path: Path) -> None:
    folder = tokenizer_files(tmp_path, template=None)
    (folder / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.ids_of("a", add_special_tokens=False) == (6,)
    with pytest.raises(TemplateError, match="no chat template"):
        tokenizer.text_of(HELLO)


def test_a_path_that_can_be_loaded_is_kept_as_it_is(tmp_path: Path) -> None:
    folder = str(tokenizer_files(tmp_path))
    assert check_tokenizer(folder) == folder
    assert check_tokenizer(None) is None


@pytest.mark.parametrize("path", ["models/m", "", "~/m", "/x\0y"])
def test_only_an_absolute_path_is_taken(path: str) -> None:
    with pytest.raises(TokenizerUnusable, match="no absolute path"):
        check_tokenizer(path)


@pytest.mark.parametrize("path", ["/nowhere/at/all", "/dev/zero"])
def test_what_is_no_file_is_refused_by_its_name(path: str) -> None:
    with pytest.raises(TokenizerUnusable, match=f"{path}.*tokenizer.json"):
        check_tokenizer(path)


def test_a_folder_without_a_tokenizer_names_the_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(TokenizerUnusable, match=str(tmp_path / "tokenizer.json")):
        check_tokenizer(str(tmp_path))


@pytest.mark.parametrize("content", ["sk-secret", '"sk-secret"', '{"model": "sk-secret"}', ""])
def test_another_kind_of_file_is_refused_and_not_repeated(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerUnusable, match="no tokenizer") as refused:
        check_tokenizer(str(tmp_path))
    assert "sk-secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("chat_template.jinja", b"{% for %}", "no template"),
        ("chat_template.jinja", b"\xff\xfe", "cannot be read as text"),
        ("tokenizer_config.json", b"{", "no JSON object"),
        ("tokenizer_config.json", b"[]", "no JSON object"),
    ],
)
def test_a_broken_file_beside_the_tokenizer_is_named(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    folder = tokenizer_files(tmp_path, template=TEMPLATE)
    (folder / name).write_bytes(content)
    with pytest.raises(TokenizerUnusable, match=words):
        check_tokenizer(str(folder))


@pytest.fixture(scope="module")
def both() -> tuple[Any, Any]:
    """The demo model's tokenizer, as we load it and as transformers does."""
    from draftrunner.weights import find_checkpoint
    from draftrunner.weights import load_tokenizer as by_transformers

    checkpoint = find_checkpoint("demo")
    return load_tokenizer(str(checkpoint.folder)), by_transformers(checkpoint)


@pytest.mark.model
@settings(deadline=None)
@given(text=texts, special=st.booleans())
def test_texts_have_the_ids_that_transformers_gives_them(
    both: tuple[Any, Any], text: str, special: bool
) -> None:
    ours, theirs = both
    assert list(ours.ids_of(text, add_special_tokens=special)) == theirs.encode(
        text, add_special_tokens=special
    )


@pytest.mark.model
@settings(deadline=None)
@given(messages=turns, prompt=st.booleans())
def test_conversations_are_spelled_as_transformers_spells_them(
    both: tuple[Any, Any], messages: list[dict[str, Any]], prompt: bool
) -> None:
    ours, theirs = both
    spelled = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    assert ours.text_of(messages, add_generation_prompt=prompt) == spelled
    if messages[-1]["content"].strip():
        continued = theirs.apply_chat_template(messages, tokenize=False, continue_final_message=True)
        assert ours.text_of(messages, continue_final_message=True) == continued
