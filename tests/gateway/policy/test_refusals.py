from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.policy.refusals import Refusal, nearest, refusals, shown


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = Field(default=1, strict=True, ge=1)


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    inner: Inner = Inner()
    colour: Literal["red", "green"] | int = 1


def refused(data: object) -> list[Refusal]:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(data)
    return refusals(caught.value, Outer, data)


def test_an_unknown_key_is_told_the_nearest_and_all_that_are_allowed() -> None:
    assert refused({"name": "a", "inne": {}}) == [
        Refusal(("inne",), "is not a known key. Did you mean 'inner'? Allowed: colour, inner, name.")
    ]


def test_a_key_one_level_too_high_is_told_where_it_belongs() -> None:
    assert refused({"name": "a", "size": 3})[0].text.startswith(
        "is not a known key. Did you mean 'inner.size'?"
    )


def test_an_unknown_key_deep_down_is_told_the_keys_of_its_own_level() -> None:
    assert refused({"name": "a", "inner": {"name": 3}}) == [
        Refusal(("inner", "name"), "is not a known key. Allowed: size.")
    ]


def test_the_branches_of_a_union_make_one_refusal_at_the_place_in_the_data() -> None:
    (refusal,) = refused({"name": "a", "colour": "rde"})
    assert refusal.path == ("colour",)
    assert refusal.text.startswith("is 'rde'. Allowed: red, green or ")
    assert refusal.text.endswith("Did you mean 'red'?")


def test_a_missing_key_is_named() -> None:
    assert refused({}) == [Refusal(("name",), "is missing, and has to be given.")]


def test_an_unfamiliar_error_keeps_its_own_words() -> None:
    assert "Input should be a valid dictionary" in refused(3)[0].text or "a mapping" in refused(3)[0].text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "empty"), ("a", "'a'"), ("x" * 200, "'" + "x" * 76 + "...")]
)
def test_values_are_shown_on_one_short_line(value: object, text: str) -> None:
    assert shown(value) == text


def test_no_word_is_near_to_something_else() -> None:
    assert nearest("zebra", ["red", "green"]) == ""
