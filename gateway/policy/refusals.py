"""Pydantic's errors in the words of whoever wrote the value: what, what was allowed, what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

MAX_SHOWN = 80
"""Characters of somebody's own text that a message repeats at most."""

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One value, or one key, that a model does not take.

    Attributes:
        path: Keys and list positions that lead to it in the data.
        text: What is wrong with it, as the end of a sentence that starts with its name.
    """

    path: Path
    text: str


def refusals(error: ValidationError, model: type[BaseModel], data: object) -> list[Refusal]:
    """Every refusal in `error`, raised by `model` on `data`; one per place."""
    grouped: dict[Path, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        if details["type"] == "none_required":
            continue  # the branch of an optional value that nobody meant to take
        grouped.setdefault(_path_in(data, details), []).append(details)
    return [Refusal(path, _sentence(path, found, model)) for path, found in grouped.items()]


def nearest(word: object, allowed: list[str]) -> str:
    """` Did you mean 'x'?`, or nothing when no allowed word is near."""
    near = difflib.get_close_matches(str(word).casefold(), allowed, n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def shown(value: object) -> str:
    """A value as a message shows it, short enough for one line."""
    text = "empty" if value is None else repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _path_in(data: object, details: ErrorDetails) -> Path:
    """The error's location without the steps that name a union's branch instead of a place in the data."""
    path: list[str | int] = []
    for step in details["loc"]:
        inside = _within(data, step)
        if inside is not _NOTHING:
            data = inside
        elif details["type"] != "missing":
            continue
        path.append(step)
    return tuple(path)


_NOTHING = object()


def _within(data: object, step: str | int) -> object:
    if isinstance(data, dict):
        return data.get(step, _NOTHING)
    if isinstance(data, list) and isinstance(step, int) and step < len(data):
        return data[step]
    return _NOTHING


def _sentence(path: Path, found: list[ErrorDetails], model: type[BaseModel]) -> str:
    first = found[0]
    match first["type"]:
        case "extra_forbidden":
            return "is not a known key." + _known_keys(str(path[-1]), _model_at(model, path[:-1]))
        case "missing":
            return "is missing, and has to be given."
        case "prod_is_experimental" | "lookahead_order":
            return f"{first['msg']}."
    allowed = [_allowed(details) for details in found]
    words = [word for details in found for word in _words(details)]
    return f"is {shown(first['input'])}. Allowed: {' or '.join(allowed)}.{nearest(first['input'], words)}"


def _known_keys(key: str, model: type[BaseModel]) -> str:
    own = list(model.model_fields)
    deeper = [path for path in _paths(model) if path.endswith(f".{key}")]
    hint = f" Did you mean {deeper[0]!r}?" if deeper else nearest(key, own)
    return f"{hint} Allowed: {', '.join(sorted(own))}."


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    for step in path:
        if isinstance(step, str):
            model = next(_models_in(model.model_fields[step].annotation))
    return model


def _paths(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield name
        for nested in _models_in(field.annotation):
            yield from (f"{name}.{path}" for path in _paths(nested))


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _words(details: ErrorDetails) -> list[str]:
    """The words that an enum or literal takes; pydantic gives them as `'a', 'b' or 'c'`."""
    if details["type"] not in ("enum", "literal_error"):
        return []
    listed = str(details["ctx"]["expected"]).replace(" or ", ", ").split(", ")
    return [word.strip("'") for word in listed]


def _allowed(details: ErrorDetails) -> str:
    say = _ALLOWED.get(details["type"])
    return say(details.get("ctx", {})) if say else ", ".join(_words(details)) or details["msg"]


_ALLOWED: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "bool_type": lambda _: "true, false",
    "dict_type": lambda _: "a mapping",
    "finite_number": lambda _: "a number",
    "float_type": lambda _: "a number",
    "frozen_set_type": lambda _: "a list",
    "greater_than": lambda limits: f"more than {limits['gt']:g}",
    "greater_than_equal": lambda limits: f"at least {limits['ge']:g}",
    "int_type": lambda _: "a whole number",
    "less_than_equal": lambda limits: f"at most {limits['le']:g}",
    "model_type": lambda _: "a mapping",
    "string_pattern_mismatch": lambda _: "letters, digits and . _ - with a letter or digit first",
    "string_too_long": lambda limits: f"at most {limits['max_length']} characters",
    "string_too_short": lambda _: "text that is not empty",
    "string_type": lambda _: "text (quote what would be read as a number, true or false)",
    "tuple_type": lambda _: "a list",
}
