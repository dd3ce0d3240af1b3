"""Chat templates, rendered as transformers renders them, by people we need not trust."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2 import TemplateError

from gateway.fleet.chat_template import ChatTemplate

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TURNS = (
    "{{ bos_token }}{% for message in messages %}"
    "[{{ message.role }}] {{ message.content }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
HELLO = [{"role": "user", "content": "hello"}]


def rendered(source: str, messages: list[dict[str, Any]] | None = None, **how: Any) -> str:
    return ChatTemplate(source, SPECIAL).render(HELLO if messages is None else messages, **how)


def test_a_conversation_is_spelled_with_the_models_special_tokens() -> None:
    assert rendered(TURNS, add_generation_prompt=True) == "<s>[user] hello</s>\n[assistant]"


def test_blocks_leave_no_blank_lines_behind() -> None:
    assert rendered("{% if messages %}\n  {% set x = 1 %}\nA\n{% endif %}\n") == "A\n"


def test_parts_of_text_are_joined_line_by_line() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "one\ntwo" in rendered(TURNS, [{"role": "user", "content": parts}])


def test_members_without_a_value_are_left_out() -> None:
    source = "{{ messages[0] | tojson }}"
    assert rendered(source, [{"role": "user", "content": "a", "name": None}]) == (
        '{"role": "user", "content": "a"}'
    )


def test_json_is_not_escaped_for_html() -> None:
    assert rendered("{{ messages[0].content | tojson }}", [{"content": "<é & 'x'>"}]) == "\"<é & 'x'>\""


@pytest.mark.parametrize("content", ["The answer is", "The answer is ", "a\n"])
def test_a_last_message_that_is_continued_is_cut_where_it_ends(content: str) -> None:
    messages = [*HELLO, {"role": "assistant", "content": content}]
    text = rendered(TURNS, messages, continue_final_message=True)
    assert text == f"<s>[user] hello</s>\n[assistant] {content}"


def test_a_template_that_trims_messages_trims_the_one_that_is_continued() -> None:
    source = "{% for message in messages %}{{ message.content | trim }}|{% endfor %}"
    assert rendered(source, [{"content": "so "}], continue_final_message=True) == "so"


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        (TURNS, []),
        (TURNS, [{"role": "assistant"}]),
        ("{{ messages[0].content }}", [{"content": "the last is left out"}, {"content": "x"}]),
    ],
)
def test_there_is_nothing_to_continue(source: str, messages: list[dict[str, Any]]) -> None:
    with pytest.raises(TemplateError):
        rendered(source, messages, continue_final_message=True)


def test_options_of_a_request_are_seen_and_cannot_replace_its_messages() -> None:
    source = "{{ thinking }} {{ messages[0].content }} {{ add_generation_prompt }}"
    options = {"thinking": "on", "messages": [], "add_generation_prompt": "never"}
    assert rendered(source, options=options) == "on hello False"


def test_tools_are_handed_on() -> None:
    assert rendered("{{ tools[0].name }}", tools=[{"name": "clock"}]) == "clock"
    assert rendered("{% if tools is none %}none{% endif %}") == "none"


def test_marks_for_training_are_not_text() -> None:
    assert rendered("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c") == "abhelloc"


def test_loops_may_be_left_and_the_date_may_be_named() -> None:
    assert rendered("{% for n in range(9) %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}") == "01"
    assert len(rendered("{{ strftime_now('%Y') }}")) == 4


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].nothing.at.all }}",
        "{{ 1 // 0 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ range(999999999) | list }}",
    ],
)
def test_what_a_template_refuses_or_must_not_do_is_an_error(source: str) -> None:
    with pytest.raises(TemplateError):
        rendered(source)


def test_options_that_are_no_object_are_an_error() -> None:
    with pytest.raises(TemplateError):
        rendered(TURNS, options="thinking")


def test_what_is_no_template_is_an_error_at_once() -> None:
    with pytest.raises(TemplateError):
        ChatTemplate("{% for %}", {})
