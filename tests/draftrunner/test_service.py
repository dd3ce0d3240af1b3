from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

import draftrunner.service
from draftrunner.drafters import DRAFTERS, make_drafters
from draftrunner.model import MAX_LOOKAHEAD
from draftrunner.profiles import PROFILES
from draftrunner.replay import UNKNOWN_ID, replay
from draftrunner.service import MAX_BODY_BYTES, MAX_IDS, create_app
from tests.fakes.served import served
from tests.fakes.target import GuessingDrafter, markov

TOKEN = "open-sesame"
PROMPT_IDS = [5, 6, 7, 8, 9, 5, 6]
ANSWER_IDS = [7, 8, 9, 1, 7, 8, 9, 2, 2, 2, 2, 2]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(create_app(token=TOKEN, version="1.2.3", drafters=make_drafters())) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with client_of(url) as client:
        yield client


def client_of(url: str, authorization: str = f"Bearer {TOKEN}") -> httpx.Client:
    headers = {"authorization": authorization} if authorization else {}
    return httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60)


def body(**changes: Any) -> dict[str, Any]:
    asked = {
        "prompt_ids": PROMPT_IDS,
        "answer_ids": ANSWER_IDS,
        "drafter": "ngram",
        "profile": "embedded",
        "ks": [1, 3, 5],
    }
    return {**asked, **changes}


def complaint(reply: httpx.Response, status: int, code: str) -> str:
    """The message of an error answer, after checking its shape."""
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert "Traceback" not in error["message"]
    return str(error["message"])


# --- replay ----------------------------------------------------------------------------------


@pytest.mark.parametrize("answer_ids", [ANSWER_IDS, [*ANSWER_IDS, UNKNOWN_ID], [7], []])
def test_the_curve_is_the_pure_functions(client: httpx.Client, answer_ids: list[int]) -> None:
    ks = list(range(1, 9))
    reply = client.post("/v1/replay", json=body(answer_ids=answer_ids, ks=ks))
    assert reply.status_code == 200
    answered = reply.json()
    assert (answered["drafter"], answered["profile"]) == ("ngram", "embedded")
    curve = replay(PROMPT_IDS, answer_ids, DRAFTERS["ngram"](PROFILES["embedded"]), ks)
    assert answered["curve"] == {
        str(k): {
            "passes": expected.passes,
            "steps": expected.steps,
            "draft_tokens": expected.draft_tokens,
            "accepted_tokens": expected.accepted_tokens,
            "accepted_by_position": list(expected.accepted_by_position),
            "passes_by_drafts": {str(drafts): n for drafts, n in expected.passes_by_drafts.items()},
            "tokens_per_pass": expected.tokens_per_pass,
            "acceptance_rate": expected.acceptance_rate,
            "mean_acceptance_length": expected.mean_acceptance_length,
            "per_step_drafted": list(expected.per_step_drafted),
            "per_step_accepted": list(expected.per_step_accepted),
        }
        for k, expected in curve.items()
    }


@pytest.mark.parametrize("profile", PROFILES)
def test_only_an_engine_that_drafts_nothing_beyond_it_is_replayed_by_the_token_limit(
    client: httpx.Client, profile: str
) -> None:
    asked = body(profile=profile, answer_ids=[7, 8, 3], ks=[8])
    limits = [{"max_tokens": 3}, {"max_tokens": 1000}, {}]
    drafted = [
        client.post("/v1/replay", json={**asked, **limit}).json()["curve"]["8"]["draft_tokens"]
        for limit in limits
    ]
    assert drafted == ([1, 5, 5] if PROFILES[profile].clips_at_end else [5, 5, 5])


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_largest_replay_allowed_is_answered(client: httpx.Client, drafter: str) -> None:
    prompt_ids = [49_151] * (MAX_IDS - len(ANSWER_IDS))
    asked = body(prompt_ids=prompt_ids, drafter=drafter)
    assert client.post("/v1/replay", json=asked).status_code == 200


def accepted(client: httpx.Client, prompt_ids: list[int], **changes: Any) -> int:
    """The accepted tokens of a short answer that follows `prompt_ids` and repeats nothing in them."""
    asked = body(drafter="suffix", ks=[3], prompt_ids=prompt_ids, answer_ids=[22, 23, 24, UNKNOWN_ID])
    reply = client.post("/v1/replay", json={**asked, **changes})
    assert reply.status_code == 200, reply.text
    return int(reply.json()["curve"]["3"]["accepted_tokens"])


def test_an_answer_is_learnt_after_its_replay_for_the_same_tenant_and_for_later_requests() -> None:
    with (
        served(create_app(token=TOKEN, version="0", drafters=make_drafters())) as url,
        client_of(url) as client,
    ):
        long_ago = {"tenant": "a", "started_at": 1000.0}
        assert accepted(client, [20, 21], **long_ago) == 0
        assert accepted(client, [20, 21], **long_ago) == 0, "that request began before anything was learnt"
        assert accepted(client, [20, 21], tenant="b") == 0
        assert accepted(client, [20, 21], tenant="a") == 1
        assert accepted(client, [20, 21]) == 0, "what has no tenant is neither learnt nor copied from"
        assert accepted(client, [20, 21]) == 0


def test_info_says_what_the_runner_can_do(client: httpx.Client) -> None:
    assert client.get("/v1/info").json() == {
        "version": "1.2.3",
        "drafters": sorted(DRAFTERS),
        "profiles": sorted(PROFILES),
        "device": "cpu",
        "draft_model": None,
    }


# --- a draft model ---------------------------------------------------------------------------


class SpelledDraftModel:
    """Takes the place of a loaded draft model: a drafter by a rule, and a vocabulary of numbers."""

    device = "cuda"

    def __init__(self) -> None:
        self.drafter = GuessingDrafter(markov(1, order=2, vocabulary=10))
        self.drafter.name = "draft_model"

    def described(self) -> dict[str, Any]:
        return {"name": "small", "fingerprint": "f00d"}

    def texts(self, lists: Sequence[Sequence[int]]) -> list[str]:
        return [" ".join(map(str, ids)) for ids in lists]


@pytest.fixture
def drafting() -> Iterator[httpx.Client]:
    """A client of a runner that has a draft model."""
    model: Any = SpelledDraftModel()
    app = create_app(token=TOKEN, version="1", drafters=make_drafters(model.drafter), draft_model=model)
    with served(app) as url, client_of(url) as client:
        yield client


def test_a_loaded_draft_model_is_described(drafting: httpx.Client) -> None:
    info = drafting.get("/v1/info").json()
    assert info["draft_model"] == {"name": "small", "fingerprint": "f00d"}
    assert info["device"] == "cuda"
    assert info["drafters"] == sorted([*DRAFTERS, "draft_model"])


def test_a_draft_model_replays_like_the_pure_function(drafting: httpx.Client) -> None:
    reply = drafting.post("/v1/replay", json=body(drafter="draft_model"))
    expected = replay(PROMPT_IDS, ANSWER_IDS, SpelledDraftModel().drafter, [5])[5]
    assert reply.json()["curve"]["5"]["per_step_accepted"] == list(expected.per_step_accepted)
    assert reply.json()["curve"]["5"]["draft_tokens"] == expected.draft_tokens > 0


def test_a_draft_models_ids_are_spelled(drafting: httpx.Client) -> None:
    asked = {"drafter": "draft_model", "ids": [[1, 2], [], [3]]}
    assert drafting.post("/v1/detokenize", json=asked).json() == {"texts": ["1 2", "", "3"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drafter": "ngram"}, "drafter: 'ngram' is not known. Allowed: draft_model."),
        ({"ids": [1]}, "ids.0: Input should be a valid array"),
        ({"ids": [[-1]]}, "ids.0.0: Input should be greater than or equal to 0"),
        ({"text": ""}, "text: Extra inputs are not permitted"),
    ],
)
def test_what_cannot_be_spelled_is_refused(
    drafting: httpx.Client, changes: dict[str, Any], message: str
) -> None:
    asked = {"drafter": "draft_model", "ids": [[1]], **changes}
    assert message in complaint(drafting.post("/v1/detokenize", json=asked), 400, "invalid_request")


def test_without_a_draft_model_there_is_nothing_to_spell(client: httpx.Client) -> None:
    reply = client.post("/v1/detokenize", json={"drafter": "draft_model", "ids": [[1]]})
    assert "'draft_model' is not known. Allowed: none." in complaint(reply, 400, "invalid_request")


# --- who may ask -----------------------------------------------------------------------------


def test_health_needs_no_token(url: str) -> None:
    with client_of(url, authorization="") as anonymous:
        assert anonymous.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "authorization",
    ["", TOKEN, f"Basic {TOKEN}", "Bearer", "Bearer open-sesamE", f"Bearer {TOKEN}x", "Bearer \xe9"],
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/info"), ("POST", "/v1/replay"), ("POST", "/v1/detokenize")]
)
def test_every_other_route_needs_the_token(url: str, authorization: str, method: str, path: str) -> None:
    headers = [(b"authorization", authorization.encode("latin-1"))] if authorization else []
    with client_of(url, authorization="") as stranger:
        reply = stranger.request(method, path, headers=headers, content=b"{")
    assert "Authorization: Bearer" in complaint(reply, 401, "invalid_runner_token")
    assert reply.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in reply.text


# --- what may be asked -----------------------------------------------------------------------

WRONG_FIELDS = {
    "an unknown drafter": ({"drafter": "egale"}, "drafter: 'egale' is not known. Allowed: ngram, suffix."),
    "an unknown profile": ({"profile": "vllm"}, "profile: 'vllm' is not known. Allowed: embedded, runner."),
    "no list": ({"prompt_ids": 5}, "prompt_ids: Input should be a valid array"),
    "a string id": ({"prompt_ids": [1, "2"]}, "prompt_ids.1: Input should be a valid integer"),
    "a fractional id": ({"answer_ids": [1.5]}, "answer_ids.0: Input should be a valid integer"),
    "a boolean id": ({"answer_ids": [True]}, "answer_ids.0: Input should be a valid integer"),
    "a negative prompt id": (
        {"prompt_ids": [-1]},
        "prompt_ids.0: Input should be greater than or equal to 0",
    ),
    "an answer id below -1": (
        {"answer_ids": [-2]},
        "answer_ids.0: Input should be greater than or equal to -1",
    ),
    "an id beyond 31 bits": ({"answer_ids": [2**31]}, "answer_ids.0: Input should be less than 2147483648"),
    "an unknown id before the end": ({"answer_ids": [1, -1, 2]}, "answer_ids.1: -1 stands for an unknown id"),
    "no lookahead": ({"ks": []}, "ks: List should have at least 1 item"),
    "lookahead 0": ({"ks": [1, 0]}, "ks.1: Input should be greater than or equal to 1"),
    "a lookahead too long": (
        {"ks": [MAX_LOOKAHEAD + 1]},
        f"ks.0: Input should be less than or equal to {MAX_LOOKAHEAD}",
    ),
    "a tenant that is no text": ({"tenant": 5}, "tenant: Input should be a valid string"),
    "a tenant too long": ({"tenant": "t" * 257}, "tenant: String should have at most 256 characters"),
    "a moment before 1970": ({"started_at": -1}, "started_at: Input should be greater than or equal to 0"),
    "an answer beyond its limit": ({"max_tokens": 3}, "max_tokens: 3 is less than answer_ids holds"),
    "a moment as text": ({"started_at": "1000"}, "started_at: Input should be a valid number"),
    "an unknown field": ({"k": 3}, "k: Extra inputs are not permitted"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG_FIELDS.values(), ids=WRONG_FIELDS)
def test_a_wrong_field_is_named_with_what_is_allowed(
    client: httpx.Client, changes: dict[str, Any], message: str
) -> None:
    assert message in complaint(client.post("/v1/replay", json=body(**changes)), 400, "invalid_request")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "body: Invalid JSON"),
        (b'{"prompt_ids": [1,', "body: Invalid JSON"),
        (b"\xff\xfe", "body: Invalid JSON"),
        (b"[]", "body: Input should be an object"),
        (b"{}", "prompt_ids: Field required; answer_ids: Field required; drafter: Field required"),
    ],
)
def test_a_body_that_is_no_request_is_refused(client: httpx.Client, content: bytes, message: str) -> None:
    assert message in complaint(client.post("/v1/replay", content=content), 400, "invalid_request")


def test_a_body_of_wrong_ids_is_complained_about_once(client: httpx.Client) -> None:
    message = complaint(
        client.post("/v1/replay", json=body(prompt_ids=["x"] * 50_000)), 400, "invalid_request"
    )
    assert len(message) < 200


def test_a_complaint_stays_short_whatever_was_sent(client: httpx.Client) -> None:
    asked = body(**{f"{'x' * 500}{i}": 1 for i in range(500)})
    assert len(complaint(client.post("/v1/replay", json=asked), 400, "invalid_request")) <= 1000


def test_more_ids_than_the_limit_are_too_large(client: httpx.Client) -> None:
    asked = body(prompt_ids=[1] * (MAX_IDS - len(ANSWER_IDS) + 1))
    message = complaint(client.post("/v1/replay", json=asked), 413, "request_too_large")
    assert f"hold {MAX_IDS + 1} ids. One replay takes {MAX_IDS} at most" in message


def test_more_bytes_than_the_limit_are_too_large_before_they_are_parsed(client: httpx.Client) -> None:
    pieces = (b" " * 65_536 for _ in range(MAX_BODY_BYTES // 65_536 + 1))
    message = complaint(client.post("/v1/replay", content=pieces), 413, "request_too_large")
    assert f"larger than {MAX_BODY_BYTES} bytes" in message


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v2", 404), ("GET", "/v1/replay", 405), ("GET", "/docs", 404), ("GET", "/openapi.json", 404)],
)
def test_a_route_that_does_not_exist_says_which_do(
    client: httpx.Client, method: str, path: str, status: int
) -> None:
    message = complaint(client.request(method, path), status, "unknown_route")
    assert f"{method} {path} is not served here" in message
    assert "POST /v1/replay" in message


# --- under load and under bugs ---------------------------------------------------------------


def test_while_a_replay_runs_the_runner_answers_and_refuses_more_than_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow_replay(*arguments: Any) -> Any:
        started.set()
        assert go_on.wait(timeout=60)
        return replay(*arguments)

    monkeypatch.setattr(draftrunner.service, "replay", slow_replay)
    app = create_app(token=TOKEN, version="0", drafters=make_drafters(), replays_at_once=1)
    with served(app) as url, client_of(url) as client, ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, "/v1/replay", json=body())
        try:
            assert started.wait(timeout=60)
            assert client.get("/healthz").status_code == 200
            refused = client.post("/v1/replay", json=body())
        finally:
            go_on.set()
        assert "1 answers at once" in complaint(refused, 503, "runner_busy")
        assert refused.headers["retry-after"] == "1"
        assert first.result().status_code == 200
        assert client.post("/v1/replay", json=body()).status_code == 200, "the place is free again"


def test_a_replay_whose_caller_has_left_drafts_no_more_and_frees_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gateway hangs up when a kill stops what it has asked for."""
    started, ended = threading.Event(), threading.Event()

    def endless(*arguments: Any) -> Any:
        started.set()
        *_, caller_left = arguments
        try:
            while not caller_left():
                time.sleep(0.001)
            return replay(*arguments)
        finally:
            ended.set()

    monkeypatch.setattr(draftrunner.service, "replay", endless)
    app = create_app(token=TOKEN, version="0", drafters=make_drafters(), replays_at_once=1)
    with served(app) as url, client_of(url) as client:
        with client_of(url) as leaving, ThreadPoolExecutor() as pool:
            asking = pool.submit(leaving.post, "/v1/replay", json=body(), timeout=0.2)
            assert started.wait(timeout=60)
            with pytest.raises(httpx.ReadTimeout):
                asking.result()
        assert ended.wait(timeout=60)
        monkeypatch.undo()
        assert client.post("/v1/replay", json=body()).status_code == 200


def test_a_bug_is_answered_without_a_traceback_and_frees_its_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError("the secret of the machine room")

    app = create_app(token=TOKEN, version="0", drafters=make_drafters(), replays_at_once=1)
    with served(app) as url, client_of(url) as client:
        with monkeypatch.context() as patch:
            patch.setattr(draftrunner.service, "replay", broken)
            reply = client.post("/v1/replay", json=body())
        assert "secret" not in complaint(reply, 500, "internal_error")
        assert client.post("/v1/replay", json=body()).status_code == 200
    assert "the secret of the machine room" in caplog.text, "the log has it"


async def test_a_client_that_leaves_during_its_upload_is_no_bug() -> None:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/replay",
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {TOKEN}".encode())],
    }
    arriving = iter(
        [{"type": "http.request", "body": b'{"prompt', "more_body": True}, {"type": "http.disconnect"}]
    )

    async def receive() -> Any:
        return next(arriving)

    async def send(message: Any) -> None:
        pass

    await create_app(token=TOKEN, version="0", drafters=make_drafters())(scope, receive, send)
