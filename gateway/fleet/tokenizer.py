"""A tokenizer that an operator registers for a backend: files that the gateway reads by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer

from gateway.errors import TokenizerUnusable
from gateway.fleet.chat_template import ChatTemplate

_ALLOWED = (
    "Give the absolute path, on the gateway's machine, of a model's folder with a tokenizer.json, "
    "or of such a file."
)


class FileTokenizer:
    """Texts and conversations as ids, as transformers makes them of the same files.

    Made by `load_tokenizer`; may be used from several threads.
    """

    def __init__(self, tokenizer: Tokenizer, templates: Mapping[str, ChatTemplate]) -> None:
        self._tokenizer = tokenizer
        self._templates = templates

    def ids_of(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """The ids of a text, between those that the model wants around every text if so asked."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def text_of(self, messages: Sequence[Mapping[str, Any]], **how: Any) -> str:
        """A conversation as `ChatTemplate.render` spells it.

        Raises:
            TemplateError: The model has no chat template, or its template refuses the conversation.
        """
        fitting = "tool_use" if how.get("tools") is not None and "tool_use" in self._templates else "default"
        if fitting not in self._templates:
            raise TemplateError("the model has no chat template")
        return self._templates[fitting].render(messages, **how)


def check_tokenizer(path: str | None) -> str | None:
    """The path of a tokenizer that can be loaded, unchanged; None for None.

    Raises:
        TokenizerUnusable: It cannot.
    """
    if path is not None:
        load_tokenizer(path)
    return path


def load_tokenizer(path: str) -> FileTokenizer:
    """Load a `tokenizer.json`, and the chat template that lies beside it, if any.

    Raises:
        TokenizerUnusable: Says which file, and never what it holds: it may be the wrong one.
    """
    file = tokenizer_file(path)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more precise
        raise TokenizerUnusable(
            f"{file} is no tokenizer that the `tokenizers` library can read. {_ALLOWED}"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return FileTokenizer(tokenizer, _templates(file.parent))


def tokenizer_file(path: str) -> Path:
    """The `tokenizer.json` that a registered path leads to.

    Raises:
        TokenizerUnusable: It leads to none.
    """
    given = Path(path)
    if "\0" in path or not given.is_absolute():
        raise TokenizerUnusable(f"The tokenizer {path[:200]!r} is no absolute path. {_ALLOWED}")
    file = given / "tokenizer.json" if given.is_dir() else given
    if not file.is_file():
        raise TokenizerUnusable(f"The gateway finds no tokenizer file at {str(file)[:500]!r}. {_ALLOWED}")
    return file


def _templates(folder: Path) -> Mapping[str, ChatTemplate]:
    """The model's chat templates by name. Most have one, `default`; some have another for `tool_use`."""
    settings = _settings(folder / "tokenizer_config.json")
    constants = {name: spelled for name in settings if (spelled := _special_token(name, settings[name]))}
    sources = _sources(folder / "chat_template.jinja", settings.get("chat_template"))
    try:
        return {name: ChatTemplate(source, constants) for name, source in sources.items()}
    except TemplateError as error:
        raise TokenizerUnusable(f"The chat template in {folder} is no template: {error}.") from error


def _settings(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    try:
        settings = json.loads(_text(file))
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise TokenizerUnusable(f"{file} is no JSON object, so the model's special tokens are not known.")
    return settings


def _sources(file: Path, setting: object) -> Mapping[str, str]:
    if file.is_file():
        return {"default": _text(file)}
    if isinstance(setting, str):
        return {"default": setting}
    named = setting if isinstance(setting, list) else []
    return {str(one["name"]): str(one["template"]) for one in named if {"name", "template"} <= set(one)}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TokenizerUnusable(f"{file} cannot be read as text ({type(error).__name__}).") from error


def _special_token(name: str, value: object) -> str | None:
    """How the token is spelled, if the setting is one: the text itself, or an object that holds it."""
    spelled = value.get("content") if isinstance(value, dict) else value
    return spelled if name.endswith("_token") and isinstance(spelled, str) else None
