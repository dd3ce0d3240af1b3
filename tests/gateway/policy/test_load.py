import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import PolicyError
from gateway.policy.load import DEFAULT_POLICY, MAX_POLICY_BYTES, load_policy, parse_policy, revision_of
from gateway.policy.model import (
    DRAFTERS,
    LEAST_CONTROL,
    MAX_LOOKAHEAD,
    Control,
    Defaults,
    Lookahead,
    Match,
    Mode,
    Policy,
    Prod,
    Rule,
    Shadow,
    Workload,
)

EXAMPLE = """\
version: 1
defaults: {mode: off}
rules:
  - name: interactive-chat
    match: {model: "llama-3*", tenant: [search, assist], workload: chat, max_temperature: 0.8}
    mode: shadow
    draft: auto
    lookahead: {min: 1, max: 8}
    shadow: {sample: 0.2, max_tokens_per_minute: 50000}
    prod: {executor: auto, share: 1.0, control: {block: 60s, fraction: 0.1}}
"""


def rule(text: str) -> Rule:
    """The only rule of a policy whose rule has the given further lines."""
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    return parse_policy(f"version: 1\nrules:\n  - name: fast\n{lines}", "p.yaml").rules[0]


def complaints(text: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "p.yaml")
    return str(caught.value).splitlines()


def rule_complaints(text: str) -> list[str]:
    """Complaints about a rule `fast` whose further lines start on line 4."""
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    return complaints(f"version: 1\nrules:\n  - name: fast\n{lines}")


def test_the_documented_example_loads() -> None:
    (only,) = parse_policy(EXAMPLE, "p.yaml").rules
    assert only.match == Match(
        model=("llama-3*",), tenant=("search", "assist"), workload=(Workload.CHAT,), max_temperature=0.8
    )
    assert (only.mode, only.draft, only.k) == (Mode.SHADOW, "auto", 8)
    assert only.shadow == Shadow(sample=0.2, max_tokens_per_minute=50000)
    assert only.prod.control == Control(block=60, fraction=0.1)


def test_what_nobody_says_is_off_with_a_lookahead_of_five() -> None:
    silent = rule("")
    assert (silent.mode, silent.draft, silent.k, silent.experimental) == (Mode.OFF, "auto", 5, False)
    assert DEFAULT_POLICY.fallback.mode is Mode.OFF


# BR-C07


@pytest.mark.parametrize("spelling", ["off", "Off", "OFF", '"off"', "'Off'", "false", "False"])
def test_every_spelling_of_off_is_off(spelling: str) -> None:
    assert rule(f"mode: {spelling}").mode is Mode.OFF
    assert parse_policy(f"version: 1\ndefaults: {{mode: {spelling}}}", "p").defaults.mode is Mode.OFF


@pytest.mark.parametrize(
    ("spelling", "read_as"),
    [
        ("on", "'on'"),
        ("On", "'On'"),
        ("true", "True"),
        ("yes", "'yes'"),
        ("y", "'y'"),
        ("no", "'no'"),
        ("1", "1"),
        ("0", "0"),
        ("null", "empty"),
        ("~", "empty"),
        ("", "empty"),
        ("''", "''"),
        ("Shadow", "'Shadow'"),
        ("[prod]", "['prod']"),
    ],
)
def test_no_other_mode_is_guessed(spelling: str, read_as: str) -> None:
    (complaint,) = rule_complaints(f"mode: {spelling}")
    assert complaint.startswith(f"p.yaml:4: rule 'fast': mode is {read_as}. Allowed: off, shadow, prod.")


def test_names_that_yaml_1_1_takes_for_booleans_stay_names() -> None:
    assert rule("match: {model: [NO, on, y], tenant: off}").match == Match(
        model=("NO", "on", "y"), tenant=("off",)
    )


def test_a_name_that_is_a_number_must_be_quoted() -> None:
    (complaint,) = rule_complaints("match: {model: 7}")
    assert complaint.startswith("p.yaml:4: rule 'fast': match.model is 7. Allowed: text (quote")
    assert rule("match: {model: '7'}").match.model == ("7",)


@pytest.mark.parametrize("word", ["yes", "on", "1", "'true'", ""])
def test_a_switch_takes_true_and_false_only(word: str) -> None:
    (complaint,) = rule_complaints(f"experimental: {word}")
    assert complaint.endswith("Allowed: true, false.")


# BR-C09


@pytest.mark.parametrize(
    ("text", "line", "first"),
    [
        ("version: 1\nrules: []\nrules: []\n", 3, 2),
        ("version: 1\nrules:\n  - name: a\n    mode: off\n    mode: shadow\n", 5, 4),
        ("version: 1\nrules:\n  - name: a\n    shadow: {sample: 1,\n      sample: 0}\n", 5, 4),
        ("version: 1\nx-a:\n  1: a\n  '1': b\n", 4, 3),
        ("version: 1\nx-a:\n  yes: a\n  true: b\n", 4, 3),
        ("version: 1\nx-a: &a {mode: off}\nrules:\n  - <<: *a\n    name: a\n    name: b\n", 6, 5),
    ],
)
def test_a_key_given_twice_is_refused_with_both_lines(text: str, line: int, first: int) -> None:
    (complaint,) = complaints(text)
    assert complaint.startswith(f"p.yaml:{line}: key ")
    assert complaint.endswith(f"is already given on line {first}.")


def test_a_merge_with_an_override_loads_with_the_override_in_force() -> None:
    policy = parse_policy(
        """\
version: 1
x-common: &common
  mode: shadow
  shadow: {sample: 0.5}
rules:
  - {<<: *common, name: a}
  - {<<: *common, name: b, mode: off}
""",
        "p.yaml",
    )
    assert [(r.name, r.mode, r.shadow.sample) for r in policy.rules] == [
        ("a", Mode.SHADOW, 0.5),
        ("b", Mode.OFF, 0.5),
    ]


def test_two_rules_of_one_name_are_refused_with_both_lines() -> None:
    assert complaints("version: 1\nrules:\n  - name: a\n  - name: b\n  - name: a\n") == [
        "p.yaml:5: rule 'a': the name is already taken by the rule on line 3."
    ]


# BR-C10


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "rule: []",
            "p.yaml:2: rule is not a known key. Did you mean 'rules'? Allowed: defaults, rules, version.",
        ),
        ("x_common: 1", "p.yaml:2: x_common is not a known key. Allowed: defaults, rules, version."),
        (
            "defaults: {match: {}}",
            "p.yaml:2: defaults: match is not a known key."
            " Allowed: draft, experimental, guardrails, lookahead, mode, prod, shadow.",
        ),
    ],
)
def test_an_unknown_key_at_the_top_is_refused(text: str, complaint: str) -> None:
    assert complaints(f"version: 1\n{text}\n") == [complaint]


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        (
            "modes: off",
            "modes",
            "Did you mean 'mode'? Allowed: draft, experimental, guardrails, lookahead, match, ",
        ),
        ("sample: 0.5", "sample", "Did you mean 'shadow.sample'?"),
        ("fraction: 0.5", "fraction", "Did you mean 'prod.control.fraction'?"),
        (
            "shadow: {sampel: 0.5}",
            "shadow.sampel",
            "Did you mean 'sample'? Allowed: compare, max_tokens_per_minute, sample.",
        ),
        (
            "shadow: {max_token_per_minute: 5}",
            "shadow.max_token_per_minute",
            "Did you mean 'max_tokens_per_minute'?",
        ),
        (
            "prod: {control: {blok: 60s}}",
            "prod.control.blok",
            "Did you mean 'block'? Allowed: block, fraction, replica.",
        ),
        ("match: {models: a}", "match.models", "Did you mean 'model'?"),
        ("lookahead: {minimum: 1}", "lookahead.minimum", "Did you mean 'min'?"),
        ("x-note: a", "x-note", "Allowed: draft, "),
        (
            "guardrails: {max_ttft_ratio: 1.2}",
            "guardrails.max_ttft_ratio",
            "Allowed: max_running, min_multiplier.",
        ),
        ("capture: {}", "capture", "Allowed: draft, "),
        ("shadow: {ids: engine}", "shadow.ids", "Allowed: compare, max_tokens_per_minute, sample."),
    ],
)
def test_an_unknown_key_in_a_rule_is_refused(text: str, key: str, hint: str) -> None:
    (complaint,) = rule_complaints(text)
    assert complaint.startswith(f"p.yaml:4: rule 'fast': {key} is not a known key. ")
    assert hint in complaint


def test_an_unknown_key_that_comes_with_a_merge_is_refused_where_it_stands() -> None:
    (complaint,) = complaints("version: 1\nx-a: &a\n  moed: off\nrules:\n  - {<<: *a, name: b}\n")
    assert complaint.startswith("p.yaml:3: rule 'b': moed is not a known key. Did you mean 'mode'?")


def test_a_key_is_told_on_one_short_line_whatever_it_holds() -> None:
    (complaint,) = complaints('version: 1\n"a\\nb": 1\n')
    assert complaint.startswith("p.yaml:2: 'a\\nb' is not a known key.")
    (complaint,) = complaints(f"version: 1\n{'a' * 100}: 1\n")
    assert f"'{'a' * 76}... is not a known key." in complaint


def test_keys_with_x_at_the_top_are_free() -> None:
    assert parse_policy("version: 1\nx-anything: {at: [all]}\n", "p") == DEFAULT_POLICY


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("draft: egale", "draft is 'egale'. Allowed: auto, none, ngram, suffix, draft_model."),
        (
            "draft: gram",
            "draft is 'gram'. Allowed: auto, none, ngram, suffix, draft_model. Did you mean 'ngram'?",
        ),
        (
            "match: {workload: summarize}",
            "match.workload is 'summarize'. Allowed: chat, code, rag, summarise, ",
        ),
        ("match: {workload: [chat, coding]}", "match.workload is 'coding'. Allowed: chat, "),
        ("match:", "match is empty. Allowed: a mapping."),
        ("match: {model: }", "match.model is empty. Allowed: a value, or the key left out."),
        ("match: {tenant: []}", "match.tenant is []. Allowed: one word, or a list that is not empty."),
        ("match: {tenant: ''}", "match.tenant is ''. Allowed: text that is not empty."),
        ("match: {model: {a: b}}", "match.model is {'a': 'b'}. Allowed: text"),
        ("match: {max_temperature: -1}", "match.max_temperature is -1. Allowed: at least 0."),
        ("match: {max_temperature: '1'}", "match.max_temperature is '1'. Allowed: a number."),
        ("lookahead: 0", "lookahead is 0. Allowed: at least 1."),
        ("lookahead: 17", "lookahead is 17. Allowed: at most 16."),
        ("lookahead: 5.0", "lookahead is 5.0. Allowed: a whole number."),
        ("lookahead: true", "lookahead is True. Allowed: a whole number."),
        ("lookahead: {min: 5, max: 2}", "lookahead has min 5 above max 2; swap them."),
        ("shadow: {sample: 20}", "shadow.sample is 20. Allowed: at most 1."),
        ("shadow: {compare: [egale]}", "shadow.compare is 'egale'. Allowed: ngram, suffix, draft_model."),
        ("shadow: 0.2", "shadow is 0.2. Allowed: a mapping."),
        (
            "shadow: {max_tokens_per_minute: }",
            "shadow.max_tokens_per_minute is empty. Allowed: a whole number or unlimited.",
        ),
        ("prod: {share: 1e400}", "prod.share is inf. Allowed: "),
        ("prod: {executor: replica}", "prod.executor is 'replica'. Allowed: auto, in_engine, gateway_loop."),
        ("guardrails: {min_multiplier: -1}", "guardrails.min_multiplier is -1. Allowed: at least 0."),
        ("guardrails: {max_running: 0}", "guardrails.max_running is 0. Allowed: at least 1."),
        (
            "prod: {control: {fraction: 0.0001}}",
            "prod.control.fraction is 0.0001. Allowed: 0 for no control, or 0.001 to 0.5.",
        ),
        (
            "prod: {control: {replica: }}",
            "prod.control.replica is empty. Allowed: a value, or the key left out.",
        ),
        ("prod: {control: {block: 0.5}}", "prod.control.block is 0.5. Allowed: at least 1."),
        ("prod: {control: {fraction: 0.6}}", "prod.control.fraction is 0.6. Allowed: at most 0.5."),
        (
            "prod: {control: {block: 60x}}",
            "prod.control.block is '60x'. Allowed: a number of seconds, or 60s, 10m, 2h.",
        ),
        ("prod: {control: {block: 0s}}", "prod.control.block is 0. Allowed: at least 1."),
        ("prod: [executor]", "prod is ['executor']. Allowed: a mapping."),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(text: str, complaint: str) -> None:
    (found,) = rule_complaints(text)
    assert found.startswith(f"p.yaml:4: rule 'fast': {complaint}")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "p.yaml:1: the file is empty. The smallest policy is `version: 1`"),
        ("# nothing\n", "p.yaml:1: the file is empty."),
        ("- a", "p.yaml:1: a policy is a mapping with the keys version, defaults and rules."),
        ("hello", "p.yaml:1: a policy is a mapping"),
        ("rules: []", "p.yaml:1: version is missing, and has to be given."),
        ("version: 2", "p.yaml:1: version is 2. Allowed: 1."),
        ("version: '1'", "p.yaml:1: version is '1'. Allowed: 1."),
        ("version: true", "p.yaml:1: version is True. Allowed: 1."),
        ("version: 1\nrules:", "p.yaml:2: rules is empty. Allowed: a list."),
        ("version: 1\nrules: {a: {}}", "p.yaml:2: rules is {'a': {}}. Allowed: a list."),
        (
            "version: 1\nrules:\n - hello",
            "p.yaml:3: rule number 1: the value is 'hello'. Allowed: a mapping.",
        ),
        (
            "version: 1\nrules:\n - mode: off",
            "p.yaml:3: rule number 1: name is missing, and has to be given.",
        ),
        ("version: 1\nrules:\n - name: a b", "p.yaml:3: rule 'a b': name is 'a b'. Allowed: letters, digits"),
        ("version: 1\ndefaults: off", "p.yaml:2: defaults is 'off'. Allowed: a mapping."),
        ("version: 1\nrules:\n\t- name: a", "p.yaml:3: a tab cannot indent YAML; use spaces."),
        ("version: 1\nrules: [", "p.yaml:2: not valid YAML: "),
    ],
)
def test_what_is_no_policy_is_refused(text: str, complaint: str) -> None:
    (found,) = complaints(text)
    assert found.startswith(complaint)


def test_every_complaint_is_told_in_the_order_of_lines() -> None:
    found = complaints(
        """\
version: 3
defaults: {draft: foo}
rules:
  - name: a
    mode: on
    mode: off
    draft: bar
  - name: a
    lookahead: 99
    match: {modle: x}
  - mode: prod
typo: 1
"""
    )
    assert [line.split(":")[1] for line in found] == [
        "1",
        "2",
        "5",
        "6",
        "7",
        "8",
        "9",
        "10",
        "11",
        "11",
        "12",
    ]


def test_prod_without_experimental_is_refused_and_says_why() -> None:
    (complaint,) = rule_complaints("mode: prod")
    assert complaint.startswith("p.yaml:4: rule 'fast': mode is prod, which needs `experimental: true`")
    assert "not taken back by itself" in complaint
    assert rule("mode: prod\nexperimental: true").mode is Mode.PROD


def test_prod_as_the_default_is_refused_once_and_not_again_in_every_rule() -> None:
    (complaint,) = complaints("version: 1\ndefaults: {mode: prod}\nrules: [{name: a}, {name: b}]\n")
    assert complaint.startswith("p.yaml:2: defaults: mode is prod, which needs")


def test_a_rule_says_only_what_differs_from_the_defaults() -> None:
    policy = parse_policy(
        """\
version: 1
defaults:
  mode: shadow
  draft: ngram
  lookahead: {min: 2, max: 4}
  experimental: true
  shadow: {sample: 0.5, max_tokens_per_minute: 100}
  prod: {share: 0.5, control: {block: 10m, fraction: 0.2}}
rules:
  - name: silent
  - name: own
    mode: prod
    lookahead: {max: 7}
    shadow: {max_tokens_per_minute: unlimited}
    prod: {control: {fraction: 0}}
""",
        "p.yaml",
    )
    silent, own = policy.rules
    assert silent == Rule(name="silent", **dict(policy.defaults))
    assert policy.fallback == Rule(name="default", **dict(policy.defaults))
    assert (own.mode, own.draft, own.experimental) == (Mode.PROD, "ngram", True)
    assert own.lookahead == Lookahead(min=1, max=7)
    assert own.shadow == Shadow(sample=0.5, max_tokens_per_minute="unlimited")
    assert own.prod == Prod(share=0.5, control=Control(block=600, fraction=0))


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("10m", 600), ("2h", 7200), ("90", 90), ("1.5", 1.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert rule(f"prod: {{control: {{block: {text}}}}}").prod.control.block == seconds


def test_a_file_is_loaded_with_its_revision_source_and_time(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(EXAMPLE)
    loaded = load_policy(path, clock=lambda: 12.5)
    assert loaded.policy == parse_policy(EXAMPLE, "p")
    assert loaded.revision == revision_of(EXAMPLE.encode())
    assert len(loaded.revision) == 12
    assert (loaded.source, loaded.loaded_at) == (str(path), 12.5)


def test_a_byte_order_mark_is_no_part_of_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"\xef\xbb\xbfversion: 1\n")
    assert load_policy(path).policy == DEFAULT_POLICY


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"version: 1\nx-a: \xff\n", ":2: byte 0xff is not UTF-8; save the file as UTF-8."),
        (b"", ":1: the file is empty."),
        (b"# " + b"x" * MAX_POLICY_BYTES, ":1: larger than "),
    ],
)
def test_a_file_that_holds_no_policy_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(content)
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    assert str(caught.value).startswith(f"{path}{complaint}")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"none\.yaml: cannot be read: No such file or directory\."):
        load_policy(tmp_path / "none.yaml")
    with pytest.raises(PolicyError, match=r"cannot be read: Is a directory\."):
        load_policy(tmp_path)


fractions = st.floats(0, 1)
words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=8)
lookaheads = st.integers(1, MAX_LOOKAHEAD) | st.tuples(
    st.integers(1, MAX_LOOKAHEAD), st.integers(1, MAX_LOOKAHEAD)
).map(lambda pair: Lookahead(min=min(pair), max=max(pair)))
shadows = st.builds(
    Shadow,
    sample=fractions,
    max_tokens_per_minute=st.integers(1, 10**15) | st.just("unlimited"),
    compare=st.lists(st.sampled_from(DRAFTERS), max_size=3),
)
prods = st.builds(
    Prod,
    executor=st.sampled_from(["auto", "in_engine"]),
    share=fractions,
    control=st.builds(Control, block=st.floats(1, 1e9), fraction=st.just(0) | st.floats(LEAST_CONTROL, 0.5)),
)
matches = st.builds(
    Match,
    **{
        "model": st.lists(words, min_size=1, max_size=3),
        "tenant": st.lists(words, min_size=1, max_size=3),
        "workload": st.lists(st.sampled_from(Workload), min_size=1, max_size=3),
        "max_temperature": st.floats(0, 10),
    },
)


@st.composite
def settings(draw: st.DrawFn) -> dict[str, Any]:
    mode = draw(st.sampled_from(Mode))
    return {
        "mode": mode,
        "experimental": mode is Mode.PROD or draw(st.booleans()),
        "draft": draw(st.sampled_from(["auto", "none", "ngram", "suffix", "draft_model"])),
        "lookahead": draw(lookaheads),
        "shadow": draw(shadows),
        "prod": draw(prods),
    }


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    names = draw(
        st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True), unique=True, max_size=4)
    )
    rules = tuple(
        Rule(name=name, match=draw(st.just(Match()) | matches), **draw(settings())) for name in names
    )
    return Policy(version=1, defaults=Defaults(**draw(settings())), rules=rules)


@pytest.mark.slow
@given(policies())
def test_a_policy_written_as_yaml_loads_as_itself(policy: Policy) -> None:
    values = policy.model_dump(mode="json", exclude_none=True)
    quoted = yaml.safe_dump(values, default_style='"', allow_unicode=True)
    assert parse_policy(quoted, "p.yaml") == policy
    assert parse_policy(json.dumps(values, ensure_ascii=False), "p.yaml") == policy


keys = st.sampled_from(
    ["version", "rules", "defaults", "name", "match", "mode", "prod", "lookahead", "x-a", "<<"]
)
values = st.sampled_from(["off", "prod", "1", "0.5", "&a", "*a", "!!int ", "'", '"', "#", "\t"])
marks = st.sampled_from([": ", "\n", "\n  ", "- ", "[", "]", "{", "}", ", "])
policy_like = st.lists(keys | values | marks, max_size=30).map("".join).map("version: 1\n".__add__)


@given(st.text() | policy_like)
def test_no_text_raises_anything_but_a_policy_error(text: str) -> None:
    with contextlib.suppress(PolicyError):
        parse_policy(text, "p.yaml")
