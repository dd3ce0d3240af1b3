import json
from importlib import resources
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.policy import init, policy
from gateway.policy.load import load_policy
from tests.fakes.rest_gateway import RestGateway
from tests.gateway.cli.conftest import Ace

GOOD = """\
version: 1
rules:
  - name: code
    match: {workload: code, tenant: [a, b]}
  - name: all
    mode: prod
    experimental: true
    draft: ngram
    prod: {share: 0.5, control: {fraction: 0}}
"""


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return str(path)


def run(*words: str) -> Result:
    return CliRunner().invoke(policy, words)


def test_check_says_what_each_rule_does(good: str) -> None:
    result = run("check", good)
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        f"{good}: valid, 2 rules, revision {load_policy(Path(good)).revision}",
        "   1. code: tenant a or b, workload code -> off",
        "   2. all: every request -> prod (ngram, up to 5 draft tokens, 50% of requests, 0% as control)",
        "      no rule matches -> off",
    ]


def test_check_tells_every_complaint_and_fails(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("version: 1\nrule: []\nrules:\n  - name: a\n    mode: on\n")
    result = run("check", str(path))
    assert result.exit_code == 1
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first.startswith(f"{path}:2: rule is not a known key. Did you mean 'rules'?")
    assert second == f"{path}:5: rule 'a': mode is 'on'. Allowed: off, shadow, prod."


def test_check_of_a_missing_file_fails_in_one_line(tmp_path: Path) -> None:
    result = run("check", str(tmp_path / "none.yaml"))
    assert result.exit_code == 1
    assert result.stderr == f"{tmp_path}/none.yaml: cannot be read: No such file or directory.\n"


def test_explain_tells_each_rules_reason_and_the_outcome(good: str) -> None:
    facts = '{"workload": "rag", "request_id": "r-3"}'
    result = run("explain", good, "--facts", facts, "--backend-supports", "in_engine")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "- code: tenant 'anonymous' is none of ['a', 'b']",
        "- all: applies, mode prod, speculate",
        "mode: prod",
        "action: speculate",
        "rule: all",
        "reason: -",
        "drafter: ngram",
        "executor: in_engine",
        "strategy: -",
        "detail: -",
        "k: 5",
        "control: block 60.0, fraction 0.0, replica -",
        "max tokens per minute: -",
        "compare: ()",
    ]


def test_explain_as_json(good: str) -> None:
    result = run("explain", good, "--json", "--facts", '{"tenant": "a", "workload": "code"}')
    told = json.loads(result.output)
    assert (told["decision"]["rule"], told["decision"]["action"]) == ("code", "pass")
    assert told["trail"] == ["code: applies, mode off, pass"]


def test_explain_takes_a_backend_for_plain_unless_told_otherwise(good: str) -> None:
    result = run("explain", good, "--json", "--facts", '{"request_id": "r-3"}')
    assert json.loads(result.output)["decision"]["reason"] == "no_executor"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ('{"modle": "m"}', "facts: modle is not a known key. Did you mean 'model'? Allowed: endpoint, "),
        ("{", "--facts is not JSON"),
        ("[1]", "facts: the value is [1]. Allowed: a mapping."),
    ],
)
def test_explain_refuses_what_are_no_facts(good: str, facts: str, words: str) -> None:
    result = run("explain", good, "--facts", facts)
    assert result.exit_code == 2
    assert words in result.stderr


def test_explain_of_a_bad_file_tells_its_complaints(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("version: 7\n")
    result = run("explain", str(path), "--facts", "{}")
    assert result.exit_code == 1
    assert result.stderr == f"{path}:1: version is 7. Allowed: 1.\n"


def test_init_writes_a_policy_that_passes_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(init).exit_code == 0
    written = (tmp_path / "policy.yaml").read_text()
    assert written == resources.files("policies").joinpath("first.yaml").read_text()
    assert run("check", "policy.yaml").exit_code == 0


def test_init_overwrites_only_by_force(good: str) -> None:
    refused = CliRunner().invoke(init, [good])
    assert refused.exit_code == 1
    assert "--force" in refused.stderr
    assert Path(good).read_text() == GOOD
    assert CliRunner().invoke(init, ["--force", good]).exit_code == 0
    assert Path(good).read_text() != GOOD


def test_init_into_a_missing_folder_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(init, [str(tmp_path / "none" / "policy.yaml")])
    assert result.exit_code == 1
    assert "cannot be written: No such file or directory." in result.stderr


REVISION = {
    "number": 2,
    "revision": "abc123",
    "author": "ann",
    "reason": "try",
    "source": "store",
    "created_at": 0.0,
}


def test_show_prints_the_text_alone_on_stdout_exactly(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, {**REVISION, "text": GOOD, "error": None}), (200, {**REVISION, "text": "x\r\n"})]
    result = ace("policy", "show", "--gateway", rest.url)
    assert (result.stdout, result.stderr) == (GOOD, "revision abc123, number 2\n")
    ace("policy", "show", "a/b", "--gateway", rest.url)
    assert rest.asked[1].path == "/admin/v1/policy/history/a%2Fb"


def test_show_says_that_there_is_no_policy(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, {"revision": "default", "number": None, "text": None, "error": None})]
    result = ace("policy", "show", "--gateway", rest.url)
    assert result.exit_code == 1
    assert "everything is off" in result.stderr


def test_history_lists_who_and_why(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, {"revisions": [REVISION]})]
    line = ace("policy", "history", "--gateway", rest.url).stdout.splitlines()[1]
    assert line.split() == ["2", "abc123", "1970-01-01T00:00:00+00:00", "ann", "store", "try"]


def test_diff_asks_the_gateway_for_two_revisions(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, {"diff": "-a\n+b\n"}), (200, {"diff": ""})]
    assert ace("policy", "diff", "1", "2", "--gateway", rest.url).stdout == "-a\n+b\n"
    assert rest.asked[0].path == "/admin/v1/policy/diff?before=1&after=2"
    assert ace("policy", "diff", "--gateway", rest.url).stdout == "They are equal.\n"


def test_diff_compares_a_file_with_the_policy_in_force(ace: Ace, rest: RestGateway, good: str) -> None:
    rest.answers = [(200, {**REVISION, "text": GOOD.replace("0.5", "0.7")})]
    said = ace("policy", "diff", "--file", good, "--gateway", rest.url).stdout
    assert said.startswith("--- in force abc123\n+++ ")
    assert "+    prod: {share: 0.5, control: {fraction: 0}}" in said
    assert ace("policy", "diff", "1", "--file", good, "--gateway", rest.url).exit_code == 2


def test_put_sends_the_text_as_it_is_with_what_it_was_based_on(
    ace: Ace, rest: RestGateway, good: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    rest.answers = [(200, REVISION)]
    words = ("--based-on", "abc122", "--reason", "try")
    result = ace("policy", "put", good, *words, "--gateway", rest.url)
    assert result.stdout == "Policy abc123 is in force, number 2.\n"
    assert rest.asked[0].method == "PUT"
    assert rest.asked[0].body == {"text": GOOD, "based_on": "abc122", "reason": "try", "author": "ann"}


def test_a_bad_file_is_never_sent(ace: Ace, rest: RestGateway, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: 1\nrulse: 1\n")
    result = ace("policy", "put", str(bad), "--based-on", "x", "--reason", "y", "--gateway", rest.url)
    assert result.exit_code == 1
    assert f"{bad}:2:" in result.stderr
    assert rest.asked == []


def test_rollback_names_the_revision_and_needs_a_reason(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, REVISION)]
    result = ace("policy", "rollback", "1", "--reason", "worse", "--json", "--gateway", rest.url)
    assert json.loads(result.stdout) == REVISION
    assert rest.asked[0].path == "/admin/v1/policy/rollback"
    assert ace("policy", "rollback", "1", "--gateway", rest.url).exit_code == 2
