import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.yaml_tree import Block, Items, read_yaml


def complaints(text: str) -> list[tuple[int, str]]:
    return [(complaint.line, complaint.text) for complaint in read_yaml(text)[1]]


def value(text: str) -> object:
    tree, found = read_yaml(text)
    assert found == []
    return tree


@pytest.mark.parametrize(
    "word", ["off", "Off", "on", "no", "NO", "yes", "y", "n", "2024-01-01", "0x1f", "1:30", "1_000"]
)
def test_what_yaml_1_1_converts_stays_a_word(word: str) -> None:
    assert value(f"key: {word}") == {"key": word}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True),
        ("False", False),
        ("12", 12),
        ("-0.5", -0.5),
        ("1e-3", 0.001),
        ("~", None),
        ("", None),
        ("'12'", "12"),
        ("!!str 12", "12"),
        ("!!float 12", 12.0),
    ],
)
def test_plain_values(text: str, expected: object) -> None:
    assert value(f"key: {text}") == {"key": expected}


def test_mappings_and_lists_know_the_lines_of_what_they_hold() -> None:
    tree = value("# head\na: 1\nb:\n  - x\n  - c: 2\n")
    assert isinstance(tree, Block)
    assert tree.lines == {"a": 2, "b": 3}
    listed = tree["b"]
    assert isinstance(listed, Items)
    assert listed.lines == [4, 5]


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 2",
        "x:\n  {a: 1, b: 2,\n  a: 2}",
        "1: a\n'1': b",
        "1: a\n1.0: b",
        "yes: a\ntrue: b",
        "off: a\nNo: b",
        "~: a\nnull: b",
    ],
)
def test_a_key_given_twice_is_named_with_both_lines(text: str) -> None:
    last_line = text.count("\n") + 1
    ((line, message),) = complaints(text)
    assert line == last_line
    assert f"is already given on line {last_line - 1}." in message


def test_keys_that_only_look_alike_stand_side_by_side() -> None:
    assert value("a: 1\nA: 2\n'1': 3\n'01x': 4") == {"a": 1, "A": 2, "1": 3, "01x": 4}


def test_a_merge_may_be_overridden_and_the_earlier_source_wins() -> None:
    tree = value("one: &one {m: 1, n: 1}\ntwo: &two {n: 2, o: 2}\nall:\n  <<: [*one, *two]\n  m: 3\n")
    assert isinstance(tree, Block)
    assert tree["all"] == {"m": 3, "n": 1, "o": 2}


def test_two_merges_in_one_mapping_are_a_key_given_twice() -> None:
    assert complaints("a: &a {m: 1}\nb:\n  <<: *a\n  <<: *a\n") == [
        (4, "key '<<' is already given on line 3."),
    ]


def test_a_merge_of_something_else_than_mappings_is_refused() -> None:
    ((line, message),) = complaints("a: 1\n<<: [3]\n")
    assert line == 2
    assert "merges a mapping" in message


def test_all_complaints_are_found_at_once() -> None:
    assert [line for line, _ in complaints("a: !odd 1\nb: 1\nb: 2\n? [c]\n: 3\nd: !!int x\n")] == [1, 3, 4, 6]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a:\n\tb: 1", 2, "a tab cannot indent YAML; use spaces."),
        ("a: [1,\nb: 2", 2, "not valid YAML"),
        ("a: 1\n---\nb: 2", 2, "another document"),
        ("a: 1\nb: *nowhere", 2, "undefined alias 'nowhere'"),
        ("a: 1\nb: \x00", 2, "'\\x00' is not allowed"),
        ("a: &a [*a]", 1, "an anchor may not contain itself."),
        ("[" * 100_000, 1, "nested too deeply"),
        ("a: !!python/object/apply:os.system [ls]", 1, "no meaning here"),
    ],
)
def test_what_is_not_yaml_is_said_with_its_line(text: str, line: int, words: str) -> None:
    ((found_line, message),) = complaints(text)
    assert found_line == line
    assert words in message


def test_aliases_of_aliases_cost_no_more_than_they_are_long() -> None:
    """Ten levels of ten aliases each would be ten thousand million values."""
    levels = ["l0: &l0 [x]"] + [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 11)]
    assert isinstance(value("\n".join(levels)), Block)


yaml_like = st.text(alphabet=st.sampled_from(list("ab1:-?&*!<>[]{}#|'\"%@ \n\t~.,\\xU")), max_size=60)


@given(st.text() | yaml_like)
def test_no_text_makes_it_raise(text: str) -> None:
    tree, found = read_yaml(text)
    assert tree is None or isinstance(tree, Block | Items | str | int | float | bool)
    assert all(complaint.line >= 1 and complaint.text for complaint in found)
