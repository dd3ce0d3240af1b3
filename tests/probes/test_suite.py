from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from probes import suite as suite_module
from probes.model import Capability, Finding, Support
from probes.question import MAX_SUITE_TOKENS, Question, Target, yes
from probes.suite import SUITES, ProbeResult, probe
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.served import served

pytestmark = pytest.mark.slow

EMBEDDED = {"owned_by": "ace-embedded", "version": {"version": "1", "engine": "ace-embedded"}}


ASKED = [capability for capability in Capability if capability is not Capability.SINGLE_PROCESS]
"""Whether one process answers is not asked but seen, in many looks."""


async def probed(server: OpenAIServer, kind: str = "auto", **changes: object) -> ProbeResult:
    given = {"kind": kind, "headers": {}, "time_limit_s": 30.0} | changes
    with served(server.app) as url:
        return await probe(url, **given)  # type: ignore[arg-type] # one dict for all the keywords


async def test_a_full_server_has_every_capability_with_evidence() -> None:
    result = await probed(OpenAIServer())
    assert (result.kind, result.up, result.reason, result.models) == ("openai", True, "", ("m",))
    assert [finding.capability for finding in result.findings] == list(ASKED)
    assert {finding.support for finding in result.findings} == {Support.YES}
    assert all(finding.evidence for finding in result.findings)


async def test_values_are_kept() -> None:
    result = await probed(OpenAIServer(models=("m", "n")))
    values = {finding.capability: finding.value for finding in result.findings}
    assert values[Capability.MODELS] == ["m", "n"]
    assert values[Capability.CONTEXT_LENGTH] == 4096


@pytest.mark.parametrize("kind", SUITES)
async def test_a_suite_costs_what_it_declares_and_no_more_than_the_bound(kind: str) -> None:
    """Every capability there, no question is cut short, so this is the most that a run can cost."""
    server = OpenAIServer(**EMBEDDED)  # type: ignore[arg-type] # two fields by name
    result = await probed(server, kind)
    assert result.up
    assert server.generated == sum(question.tokens for question in SUITES[kind])
    assert server.generated <= MAX_SUITE_TOKENS


@pytest.mark.parametrize("missing", ["chat", "completions", "tokenize_chat"])
async def test_a_suite_never_costs_more_when_routes_are_missing(missing: str) -> None:
    server = OpenAIServer().without(missing)
    await probed(server)
    assert server.generated <= sum(question.tokens for question in SUITES["openai"])


@pytest.mark.parametrize("question", SUITES["openai"], ids=lambda question: question.capability.value)
async def test_a_question_costs_what_it_declares(question: Question, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_module, "SUITES", {"openai": (question,)})
    server = OpenAIServer()
    await probed(server, "openai")
    assert server.generated == question.tokens


def asking(tokens_declared: int, tokens_asked: int) -> Question:
    async def ask(target: Target) -> Finding:
        await target.chat(tokens_asked)
        return yes(Capability.LOGPROBS, "asked")

    return Question(capability=Capability.LOGPROBS, tokens=tokens_declared, ask=ask)


async def test_a_question_may_not_cost_more_than_it_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_module, "SUITES", {"openai": (asking(4, 5), asking(4, 4))})
    server = OpenAIServer()
    first, second = (await probed(server, "openai")).findings
    assert (first.support, second.support) == (Support.UNKNOWN, Support.YES)
    assert "5 tokens are more than the 4 declared" in first.evidence
    assert server.generated == 4


def suite_of(*costs: int) -> tuple[Question, ...]:
    return tuple(asking(tokens, tokens) for tokens in costs)


async def test_a_suite_may_not_cost_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_module, "SUITES", {"openai": suite_of(MAX_SUITE_TOKENS - 4, 5, 4)})
    server = OpenAIServer()
    findings = (await probed(server, "openai")).findings
    assert [finding.support for finding in findings] == [Support.YES, Support.UNKNOWN, Support.YES]
    assert server.generated == MAX_SUITE_TOKENS


async def test_a_server_that_generates_more_than_asked_uses_up_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suite_module, "SUITES", {"openai": (asking(4, 4), asking(4, 4))})
    server = OpenAIServer(spoil=lambda request, answer: answer["usage"].update(completion_tokens=1000))
    findings = (await probed(server, "openai")).findings
    assert [finding.support for finding in findings] == [Support.YES, Support.UNKNOWN]


async def test_the_embedded_backend_is_recognised_by_two_signs() -> None:
    assert (await probed(OpenAIServer(**EMBEDDED))).kind == "embedded"  # type: ignore[arg-type]
    for sign in EMBEDDED:
        one_sign = {sign: EMBEDDED[sign]}
        assert (await probed(OpenAIServer(**one_sign))).kind == "openai"  # type: ignore[arg-type]


async def test_an_embedded_backend_may_be_declared_a_plain_server() -> None:
    result = await probed(OpenAIServer(**EMBEDDED), "openai")  # type: ignore[arg-type]
    assert (result.kind, result.up) == ("openai", True)


async def test_a_server_declared_embedded_that_is_another_is_down_and_generates_nothing() -> None:
    server = OpenAIServer(owned_by="vllm")
    result = await probed(server, "embedded")
    assert (result.up, result.kind, result.models) == (False, "openai", ("m",))
    assert "declared embedded" in result.reason
    assert "'vllm'" in result.reason
    assert [finding.capability for finding in result.findings] == [Capability.MODELS]
    assert server.generated == 0


async def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="auto, openai, embedded"):
        await probed(OpenAIServer(), "vlm")


@pytest.mark.parametrize(
    ("status", "body", "support", "said"),
    [
        (200, "<!doctype html><title>Shop</title>", "no", "text/html"),
        (200, '{"models": []}', "no", "not a list of models"),
        (200, '{"data": []}', "no", "lists no models"),
        (200, '{"data": [{"name": "m"}]}', "no", "lists no models"),
        (404, '{"detail": "Not Found"}', "no", "HTTP 404"),
        (301, "", "no", "HTTP 301"),
        (401, '{"error": "Unauthorized"}', "unknown", "wants a credential"),
        (403, "", "unknown", "wants a credential"),
        (429, "", "unknown", "HTTP 429"),
        (503, '{"error": {"message": "Loading model"}}', "unknown", "Loading model"),
    ],
)
async def test_a_server_that_lists_no_models_is_down(status: int, body: str, support: str, said: str) -> None:
    server = OpenAIServer(answers={"/v1/models": (status, body)})
    result = await probed(server)
    assert (result.up, result.kind, result.models) == (False, "openai", ())
    assert said in result.reason
    finding = result.findings[0]
    assert (finding.capability, finding.support.value) == (Capability.MODELS, support)
    assert said in finding.evidence
    assert server.generated == 0


@pytest.mark.parametrize("kind", SUITES)
async def test_a_web_site_is_not_what_it_was_declared(kind: str) -> None:
    result = await probed(OpenAIServer(answers={"/v1/models": (200, "<html>")}), kind)
    assert (result.up, result.kind) == (False, kind)
    assert "it is no OpenAI-compatible server" in result.reason


@contextmanager
def listening(answer: bytes) -> Iterator[str]:
    """Something that is no web server: says its piece to whoever connects, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=talk)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


async def test_something_that_is_no_web_server_is_down() -> None:
    with listening(b"SSH-2.0-OpenSSH_9.6\r\n") as url:
        result = await probe(url, kind="auto", headers={}, time_limit_s=10.0)
    assert not result.up
    assert "does not speak HTTP" in result.reason


async def test_a_closed_port_is_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    result = await probe(url, kind="auto", headers={}, time_limit_s=10.0)
    assert not result.up
    assert "no connection" in result.reason
    assert result.findings[0].support is Support.UNKNOWN


async def test_a_server_that_never_answers_is_down_when_the_time_is_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        result = await probe(url, kind="auto", headers={}, time_limit_s=0.2)
    assert not result.up
    assert "within 0.2 s" in result.reason


async def test_questions_that_the_time_does_not_reach_are_unknown() -> None:
    server = OpenAIServer(hangs=frozenset({"/v1/chat/completions"}))
    result = await probed(server, "openai", time_limit_s=0.5)
    assert result.up
    support = {finding.capability: finding.support for finding in result.findings}
    assert support[Capability.MODELS] is Support.YES
    assert {support[capability] for capability in list(ASKED)[2:]} == {Support.UNKNOWN}


async def test_one_question_cannot_use_up_the_others_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_module, "QUESTION_LIMIT_S", 0.1)
    result = await probed(OpenAIServer(hangs=frozenset({"/detokenize"})), time_limit_s=4.0)
    support = {finding.capability: finding.support for finding in result.findings}
    assert support.pop(Capability.DETOKENIZE) is Support.UNKNOWN
    assert set(support.values()) == {Support.YES}


async def test_a_server_that_stops_answering_in_between_is_unknown_not_no() -> None:
    def dead(status: int) -> dict[str, tuple[int, str]]:
        paths = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/metrics"]
        return dict.fromkeys(paths, (status, "{}"))

    for status in (401, 403, 429, 500, 502, 503):
        result = await probed(OpenAIServer(answers=dead(status)))
        asked = [finding for finding in result.findings if finding.capability not in list(Capability)[:2]]
        assert {finding.support for finding in asked} == {Support.UNKNOWN}
        assert all(f"HTTP {status}" in finding.evidence for finding in asked)


SECRET = "sk-TEST-0123456789"


async def test_a_credential_is_never_in_the_evidence() -> None:
    headers = {"authorization": f"Bearer {SECRET}"}
    refused = await probed(OpenAIServer(key="another"), headers=headers)
    assert "Incorrect API key provided" in refused.reason
    quoted = (500, f'{{"error": "{"x" * 190} {SECRET}"}}')
    later = await probed(OpenAIServer(answers={"/tokenize": quoted}), headers=headers)
    for result in (refused, later):
        assert "TEST" not in repr(result)


async def test_the_credential_is_sent() -> None:
    result = await probed(OpenAIServer(key=SECRET), headers={"authorization": f"Bearer {SECRET}"})
    assert result.up
    assert {finding.support for finding in result.findings} == {Support.YES}


async def test_evidence_is_one_short_printable_line() -> None:
    server = OpenAIServer(answers={"/tokenize": (404, "no\n\x1b[31m such\r\nroute " + "é" * 1000)})
    result = await probed(server)
    finding = next(finding for finding in result.findings if finding.capability is Capability.TOKENIZE)
    assert finding.evidence.startswith("/tokenize answered HTTP 404: no ?[31m such route é")
    assert len(finding.evidence) < 300


async def test_an_endless_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.wire.MAX_ANSWER_BYTES", 5000)
    server = OpenAIServer(answers={"/tokenize": (200, "x" * 10_000)})
    result = await probed(server)
    finding = next(finding for finding in result.findings if finding.capability is Capability.TOKENIZE)
    assert finding.support is Support.UNKNOWN
    assert "more than 5000 bytes" in finding.evidence
