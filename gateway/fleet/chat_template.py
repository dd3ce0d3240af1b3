"""A model's chat template: Jinja in a sandbox, with what transformers gives templates to work with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_CUT_HERE = "CONTINUE_FINAL_MESSAGE_TAG "
"""What transformers marks the end of a message with that is to be continued."""


class ChatTemplate:
    """Spells conversations as `apply_chat_template` of transformers does.

    What a server does to messages before its template sees them (tool arguments as objects, for one) is
    not repeated here.

    Args:
        source: The template.
        constants: What it may name besides the conversation: the model's special tokens.

    Raises:
        TemplateError: It is no Jinja template.
    """

    def __init__(self, source: str, constants: Mapping[str, str]) -> None:
        self._template = _environment().from_string(source)
        self._constants = dict(constants)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tools: object = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as one text.

        Args:
            messages: Their contents are text, or parts of type `text`.
            add_generation_prompt: End with the start of an answer.
            continue_final_message: End within the last message, which is the start of the answer.
            tools: What the model may call, in OpenAI's shape.
            options: What a request says to the template in `chat_template_kwargs`.

        Raises:
            TemplateError: The template refuses the conversation, or cannot say it.
        """
        try:
            spelled = [_plain(message) for message in messages]
            if continue_final_message:
                _mark_end(spelled)
            text = self._template.render(
                self._constants
                | dict(options or {})
                | {"messages": spelled, "tools": tools, "documents": None}
                | {"add_generation_prompt": add_generation_prompt}
            )
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise TemplateError(f"the template fails with {type(error).__name__}") from error
        return _cut(text) if continue_final_message else text


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without empty members, its parts joined as vLLM joins them for a template of texts."""
    plain = {name: value for name, value in message.items() if value is not None}
    if isinstance(content := plain.get("content"), list):
        plain["content"] = "\n".join(str(part.get("text", "")) for part in content)
    return plain


def _mark_end(messages: list[dict[str, Any]]) -> None:
    if not messages or not isinstance(messages[-1].get("content"), str):
        raise TemplateError("there is no last message that could be continued")
    messages[-1]["content"] += _CUT_HERE


def _cut(text: str) -> str:
    """The text up to the mark; where the template has trimmed the mark, it would have trimmed the message."""
    before, mark, after = text.rpartition(_CUT_HERE.rstrip())
    if not mark:
        raise TemplateError("the template leaves the last message out")
    return before if after.startswith(" ") else before.rstrip()


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _Generation(Extension):
    """`{% generation %}` marks what the model says, for training; the text is the same."""

    tags = {"generation"}  # noqa: RUF012 - declared so by Jinja

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter would escape characters for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
