import json
from importlib import resources
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.policy import init, policy
from gateway.policy.load import load_policy

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
