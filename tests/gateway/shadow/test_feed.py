from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import BackendUnreachable
from gateway.fleet.model import Backend, EngineKind
from gateway.fleet.pairing import Pairing
from gateway.policy.model import Action
from gateway.policy.overlays import Stop, Subject
from gateway.shadow.answer import FinishedAnswer
from gateway.shadow.feed import ShadowFeed, ShadowLimits
from gateway.shadow.reasons import SkipReason
from gateway.shadow.runner import MAX_REPLAY_IDS, Replay, ReplayCounts, ReplayFailed, RunnerUnavailable
from gateway.telemetry.record import StageRecord
from probes.model import Capability, Finding, Support
from tests.fakes.finished import BACKEND, DECISION, USAGE, chat_answer, chat_request, chunk, finished, stream
from tests.fakes.waiting import until

SECRET = "the launch code is 0000"


def counts(k: int) -> ReplayCounts:
    return ReplayCounts(
        passes=4,
        steps=2,
        draft_tokens=2 * k,
        accepted_tokens=k,
        accepted_by_position=(1,) * k,
        passes_by_drafts={"0": 2, str(k): 2},
        tokens_per_pass=1.5,
    )


class Bench:
    """A feed with everything around it scripted, and every record that it left."""

    def __init__(self, limits: ShadowLimits | None = None) -> None:
        self.records: list[StageRecord] = []
        self.recorded = asyncio.Event()
        self.prompt_ids: Sequence[int] | None = [10, 11, 12, 13]
        self.text_ids: Sequence[int] | None = [20, 21, 22]
        self.tokenized: list[Mapping[str, Any]] = []
        self.replayed: list[Mapping[str, Any]] = []
        self.asked_for: list[tuple[str, str, float]] = []
        self.limits: list[int | None] = []
        self.failure: Exception | None = None
        self.unreachable: BackendUnreachable | None = None
        self.nobody: RunnerUnavailable | None = None
        self.failing: dict[str, Exception] = {}
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.pairing: Pairing | None = Pairing(True, "they agree")
        self.pairs: list[tuple[str, str]] = []
        self.killed: set[str] = set()
        self.now = 0.0
        self.feed = ShadowFeed(
            telemetry=self,
            tokenize=self.tokenize,
            runner=self,
            pairing=self.paired,
            stop=self.stop,
            limits=limits or ShadowLimits(),
            clock=lambda: self.now,
        )

    def stage(self, record: StageRecord) -> None:
        self.records.append(record)
        self.recorded.set()

    async def tokenize(self, backend: Backend, payload: Mapping[str, Any]) -> Sequence[int] | None:
        self.tokenized.append(payload)
        self.asked.set()
        if self.unreachable is not None:
            raise self.unreachable
        return self.prompt_ids if "messages" in payload else self.text_ids

    async def paired(self, backend: str, model: str) -> Pairing | None:
        self.pairs.append((backend, model))
        return self.pairing

    def stop(self, subject: Subject) -> Stop | None:
        return Stop("killed", "by a test") if subject.tenant in self.killed else None

    def check(self, drafter: str) -> None:
        if self.nobody is not None:
            raise self.nobody

    async def replay(
        self,
        *,
        prompt_ids: Sequence[int],
        answer_ids: Sequence[int],
        drafter: str,
        profile: str,
        ks: Sequence[int],
        tenant: str,
        started_at: float,
        max_tokens: int | None,
    ) -> Replay:
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        if drafter in self.failing:
            raise self.failing[drafter]
        self.replayed.append({"prompt_ids": [*prompt_ids], "answer_ids": [*answer_ids], "ks": [*ks]})
        self.asked_for.append((drafter, tenant, started_at))
        self.limits.append(max_tokens)
        return Replay(drafter=drafter, profile=profile, curve={k: counts(k) for k in ks})

    async def measure(self, answer: FinishedAnswer) -> StageRecord:
        """Offer one answer, and wait for the record it leaves."""
        self.recorded.clear()
        async with self.running():
            self.feed.offer(answer)
            await asyncio.wait_for(self.recorded.wait(), 10)
        assert len(self.records) == 1
        return self.records[0]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(self.feed.run())
        try:
            yield task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_a_measured_answer_leaves_its_counts_and_the_curve_of_every_k() -> None:
    bench = Bench()
    record = await bench.measure(finished(chat_answer(metrics={"generation_time_ms": 40.0})))
    curve = record.k_curve
    assert curve is not None
    assert list(curve) == [str(k) for k in range(1, 9)]
    assert curve["3"] == {
        "passes": 4,
        "steps": 2,
        "draft_tokens": 6,
        "accepted_tokens": 3,
        "tokens_per_pass": 1.5,
        "acceptance_rate": 0.5,
        "passes_by_drafts": {"0": 2, "3": 2},
    }
    assert replace(record, k_curve=None) == StageRecord(
        request_id="r-1",
        at=1000.0,
        mode="shadow",
        action="would_speculate",
        model="m",
        backend="gpu-1",
        rule="all",
        tenant="search",
        workload="chat",
        drafter="ngram",
        source="replay",
        profile="runner",
        k=5,
        passes=4,
        steps=2,
        draft_tokens=10,
        accepted_tokens=5,
        accepted_by_position=(1, 1, 1, 1, 1),
        acceptance_rate=0.5,
        mean_acceptance_length=3.5,
        prompt_tokens=4,
        completion_tokens=3,
        decode_tokens=2,
        decode_seconds=0.04,
        temperature=0.5,
        looping=False,
        policy_revision="abc",
        traceparent="00-1-2-01",
    )
    assert bench.replayed == [
        {"prompt_ids": [10, 11, 12, 13], "answer_ids": [20, 21, 22], "ks": [*range(1, 9)]}
    ]


@pytest.mark.parametrize(
    ("kind", "profile"), [(EngineKind.EMBEDDED, "embedded"), (EngineKind.OPENAI, "runner")]
)
async def test_a_replay_follows_the_habits_of_whoever_would_draft(kind: EngineKind, profile: str) -> None:
    """The engine where it can by itself; for a plain server, the draft runner."""
    record = await Bench().measure(finished(chat_answer(), backend=replace(BACKEND, kind=kind)))
    assert record.profile == profile


async def test_the_runner_is_told_whose_answer_it_is_and_when_its_request_began() -> None:
    bench = Bench()
    await bench.measure(finished(chat_answer(), decision=replace(DECISION, drafter="suffix"), at=1234.5))
    assert bench.asked_for == [("suffix", "search", 1234.5)]


@pytest.mark.parametrize(
    ("finish_reason", "stated", "limit"),
    [
        ("length", {}, 3),
        ("stop", {"max_tokens": 9}, 9),
        ("stop", {"max_tokens": 9, "max_completion_tokens": 7}, 7),
        ("stop", {}, None),
        ("stop", {"max_tokens": 2}, None),
        ("stop", {"max_tokens": "many"}, None),
    ],
)
async def test_the_runner_is_told_how_long_the_answer_could_have_been(
    finish_reason: str, stated: dict[str, object], limit: int | None
) -> None:
    bench = Bench()
    await bench.measure(finished(chat_answer("a b c", finish_reason), request=chat_request(**stated)))
    assert bench.limits == [limit]


async def test_an_answer_is_replayed_for_every_drafter_that_its_rule_compares() -> None:
    bench = Bench()
    decision = replace(DECISION, compare=("suffix", "draft_model"))

    record = await bench.measure(finished(chat_answer(), decision=decision))

    assert record.drafter == "ngram"
    assert record.compared is not None
    assert list(record.compared) == ["suffix", "draft_model"]
    suffix = dict(record.compared["suffix"])
    assert suffix.pop("curve") == record.k_curve
    assert suffix == {"acceptance_rate": 0.5, "steps": 2, "draft_tokens": 10, "accepted_tokens": 5}
    assert [one["answer_ids"] for one in bench.replayed] == [[20, 21, 22]] * 3
    assert len(bench.tokenized) == 2


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(RunnerUnavailable("away"), "runner_unavailable"), (ReplayFailed("refused"), "replay_failed")],
)
async def test_a_compared_drafter_that_fails_costs_the_answer_nothing(
    failure: Exception, reason: str
) -> None:
    bench = Bench()
    bench.failing = {"suffix": failure}
    decision = replace(DECISION, compare=("suffix", "draft_model"))

    record = await bench.measure(finished(chat_answer(), decision=decision))

    assert (record.action, record.reason) == ("would_speculate", None)
    assert record.compared is not None
    assert record.compared["suffix"] == {"reason": reason}
    assert record.compared["draft_model"]["steps"] == 2


@pytest.mark.parametrize(
    ("pairing", "reason"),
    [
        (Pairing(False, "they differ"), "tokenizers_differ"),
        (Pairing(None, "they could not be compared"), "tokenizers_not_compared"),
        (None, "runner_unavailable"),
    ],
)
async def test_a_draft_model_that_may_mean_other_texts_is_not_measured(
    pairing: Pairing | None, reason: str
) -> None:
    """Public report B01: its acceptance would be near zero for no visible reason."""
    bench = Bench()
    bench.pairing = pairing
    record = await bench.measure(finished(chat_answer(), decision=replace(DECISION, drafter="draft_model")))
    assert (record.action, record.reason) == ("skip", reason)
    assert bench.pairs == [("gpu-1", "m")]
    assert bench.replayed == []


async def test_drafters_that_copy_the_targets_own_ids_need_no_pairing() -> None:
    bench = Bench()
    await bench.measure(finished(chat_answer(), decision=replace(DECISION, drafter="suffix")))
    assert bench.pairs == []


async def test_a_rule_with_a_longer_lookahead_gets_its_own_counts() -> None:
    bench = Bench()
    record = await bench.measure(finished(chat_answer(), decision=replace(DECISION, k=12)))
    assert record.draft_tokens == 24
    assert record.k_curve is not None
    assert "12" in record.k_curve


async def test_an_answer_that_goes_round_in_circles_is_marked() -> None:
    bench = Bench()
    bench.text_ids = [20, 21, 22] * 30
    usage = {"prompt_tokens": 4, "completion_tokens": 90, "total_tokens": 94}
    assert (await bench.measure(finished(chat_answer(usage=usage)))).looping


async def test_an_end_of_sequence_that_was_counted_is_replayed_as_unknown() -> None:
    bench = Bench()
    bench.text_ids = [20, 21]
    await bench.measure(finished(chat_answer("a b", "stop")))
    assert bench.replayed[0]["answer_ids"] == [20, 21, -1]


async def test_an_end_of_sequence_that_was_not_counted_is_left_out() -> None:
    bench = Bench()
    await bench.measure(finished(chat_answer("a b c", "stop")))
    assert bench.replayed[0]["answer_ids"] == [20, 21, 22]


async def test_an_empty_answer_is_replayed_without_asking_for_its_ids() -> None:
    bench = Bench()
    record = await bench.measure(finished(chat_answer("", "stop", usage=USAGE | {"completion_tokens": 1})))
    assert record.action == "would_speculate"
    assert bench.replayed[0]["answer_ids"] == [-1]
    assert len(bench.tokenized) == 1


NO_EVIDENCE = {
    "certain of everything": {"content": [{"token": " a", "logprob": 0.0, "top_logprobs": []}] * 3},
    "one entry for many tokens": {"content": [{"token": " a b c", "logprob": -0.1}]},
    "none of them": {"content": None},
    "of another kind": [-0.5, None],
}


@pytest.mark.parametrize("logprobs", NO_EVIDENCE.values(), ids=NO_EVIDENCE.keys())
async def test_log_probabilities_are_never_scored_whatever_they_say(logprobs: object) -> None:
    """A backend that speculates by itself may report nonsense; the ids decide alone (BR-B08)."""
    answer = chat_answer()
    answer["choices"][0]["logprobs"] = logprobs
    assert await Bench().measure(finished(answer)) == await Bench().measure(finished(chat_answer()))


async def test_tokens_that_are_not_in_the_text_are_not_scored_by_their_log_probabilities() -> None:
    answer = chat_answer(usage=USAGE | {"completion_tokens": 9})
    answer["choices"][0]["logprobs"] = {"content": [{"token": " a", "logprob": 0.0}] * 9}
    assert await skipped_because(finished(answer)) == "tokenizer_mismatch"


async def test_tokens_are_counted_by_the_engine_and_not_by_chunks() -> None:
    """A hundred tokens in 37 chunks (BR-B17)."""
    usage = USAGE | {"completion_tokens": 100}
    chunks = (
        [chunk("a b c d ") for _ in range(21)] + [chunk("e ") for _ in range(15)] + [chunk("f", "length")]
    )
    assert len(chunks) == 37
    bench = Bench()
    bench.text_ids = range(100)
    record = await bench.measure(finished(stream(*chunks, {"choices": [], "usage": usage})))
    assert (record.action, record.completion_tokens) == ("would_speculate", 100)
    assert bench.replayed[0]["answer_ids"] == [*range(100)]
    assert await skipped_because(finished(stream(*chunks))) == "no_usage"


async def test_a_prompt_of_ids_is_replayed_as_it_is() -> None:
    bench = Bench()
    completion = {"choices": [{"index": 0, "text": "a b c", "finish_reason": "length"}], "usage": USAGE}
    request = {"model": "m", "prompt": [7, 8, 9, 10]}
    await bench.measure(finished(completion, request=request, endpoint="completions"))
    assert bench.replayed[0]["prompt_ids"] == [7, 8, 9, 10]


@pytest.mark.parametrize(
    ("prompt_ids", "text_ids", "finish_reason"),
    [
        ([10, 11, 12], [20, 21, 22], "length"),
        ([10, 11, 12, 13], [20, 21], "length"),
        ([10, 11, 12, 13], [20, 21, 22, 23], "stop"),
        ([10, 11, 12, 13], [20], "stop"),
    ],
)
async def test_ids_that_are_not_as_many_as_the_engine_counted_are_not_used(
    prompt_ids: list[int], text_ids: list[int], finish_reason: str
) -> None:
    bench = Bench()
    bench.prompt_ids, bench.text_ids = prompt_ids, text_ids
    record = await bench.measure(finished(chat_answer("a b c", finish_reason)))
    assert (record.action, record.reason) == ("skip", "tokenizer_mismatch")
    assert bench.replayed == []


async def skipped_because(answer: FinishedAnswer, bench: Bench | None = None) -> str | None:
    record = await (bench or Bench()).measure(answer)
    assert record.action == "skip"
    assert (record.source, record.profile, record.acceptance_rate, record.k_curve) == (None, None, None, None)
    assert (record.request_id, record.rule, record.drafter) == ("r-1", "all", "ngram")
    return record.reason


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (finished(chat_answer(), decision=replace(DECISION, action=Action.SKIP)), "not_sampled"),
        (finished(chat_answer(), decision=replace(DECISION, action=Action.SKIP, reason="why")), "why"),
        (finished(chat_answer(), status=500), "backend_error"),
        (finished(b"", status=0, complete=False), "backend_error"),
        (finished(chat_answer(), complete=False), "incomplete_answer"),
        (finished(chat_answer(), content_encoding="gzip"), "encoded_answer"),
        (finished(b"", complete=False, too_large=True), "answer_too_large"),
        (finished(chat_answer(), request_body=b"x" * (8 * 2**20 + 1)), "answer_too_large"),
        (finished(chat_answer(usage=None)), "no_usage"),
        (finished(chat_answer(choices=[])), "incomplete_answer"),
        (finished(chat_answer(), decision=replace(DECISION, k=None)), "no_drafter"),
        (finished(chat_answer(usage=USAGE | {"prompt_tokens": MAX_REPLAY_IDS})), "answer_too_large"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_be_measured_says_why(answer: FinishedAnswer, reason: str) -> None:
    assert await skipped_because(answer) == reason


async def test_an_identity_encoding_is_no_encoding() -> None:
    record = await Bench().measure(finished(chat_answer(), content_encoding="Identity"))
    assert record.action == "would_speculate"


async def test_a_backend_known_to_have_no_tokenizer_is_not_asked() -> None:
    no = Finding(capability=Capability.TOKENIZE, support=Support.NO, evidence="HTTP 404")
    bench = Bench()
    backend = replace(BACKEND, findings={Capability.TOKENIZE: no})
    assert await skipped_because(finished(chat_answer(), backend=backend), bench) == "no_tokenizer"
    assert bench.tokenized == []


async def test_registered_files_are_asked_instead_of_a_backend_that_has_no_tokenizer() -> None:
    no = Finding(capability=Capability.TOKENIZE, support=Support.NO, evidence="HTTP 404")
    backend = replace(BACKEND, findings={Capability.TOKENIZE: no}, tokenizer="/models/m")
    record = await Bench().measure(finished(chat_answer(), backend=backend))
    assert record.action == "would_speculate"


async def test_a_backend_that_gives_no_ids_has_no_tokenizer() -> None:
    bench = Bench()
    bench.prompt_ids = None
    assert await skipped_because(finished(chat_answer()), bench) == "no_tokenizer"


async def test_a_backend_that_cannot_be_asked_for_ids_is_an_error_of_the_backend() -> None:
    bench = Bench()
    bench.unreachable = BackendUnreachable("gpu-1", "refused")
    assert await skipped_because(finished(chat_answer()), bench) == "backend_error"


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (RunnerUnavailable("away"), "runner_unavailable"),
        (ReplayFailed("refused"), "replay_failed"),
        (KeyError(SECRET), "replay_failed"),
    ],
)
async def test_a_failing_replay_is_a_skip_and_shows_no_content(
    failure: Exception, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.failure = failure
    with caplog.at_level(logging.DEBUG):
        assert await skipped_because(finished(chat_answer(SECRET)), bench) == reason
    assert SECRET not in caplog.text


async def test_the_backend_is_not_asked_for_ids_that_no_runner_would_take() -> None:
    bench = Bench()
    bench.nobody = RunnerUnavailable("nobody has joined")
    assert await skipped_because(finished(chat_answer()), bench) == "runner_unavailable"
    assert bench.tokenized == []


@pytest.mark.parametrize(("workers", "limit"), [(1, 5), (2, 6)])
async def test_a_rule_over_its_budget_is_skipped_before_anybody_is_asked(workers: int, limit: int) -> None:
    bench = Bench(ShadowLimits(workers=workers))
    answer = finished(chat_answer(), decision=replace(DECISION, max_tokens_per_minute=limit))
    async with bench.running():
        for _ in range(2):
            bench.recorded.clear()
            bench.feed.offer(answer)
            await asyncio.wait_for(bench.recorded.wait(), 10)
    assert [record.reason for record in bench.records] == [None, "over_budget"]
    assert len(bench.tokenized) == 2


async def test_a_full_queue_takes_no_more_answers() -> None:
    bench = Bench(ShadowLimits(max_answers=2))
    for n in range(3):
        bench.feed.offer(finished(chat_answer(), request_id=f"r-{n}"))
    assert [(record.request_id, record.reason) for record in bench.records] == [("r-2", "queue_full")]


async def test_a_queue_full_of_bytes_takes_no_more_answers() -> None:
    answer = finished(chat_answer())
    size = len(answer.request_body) + len(answer.answer_body)
    bench = Bench(ShadowLimits(max_bytes=2 * size))
    for _ in range(3):
        bench.feed.offer(answer)
    assert [record.reason for record in bench.records] == ["queue_full"]
    bench.recorded.clear()
    async with bench.running():
        await asyncio.wait_for(bench.recorded.wait(), 10)
        bench.feed.offer(answer)
    assert [record.reason for record in bench.records].count("queue_full") == 1


async def test_every_answer_leaves_one_record_when_the_gateway_stops() -> None:
    bench = Bench()
    bench.gate.clear()
    async with bench.running() as task:
        for n in range(4):
            bench.feed.offer(finished(chat_answer(), request_id=f"r-{n}"))
        await asyncio.wait_for(bench.asked.wait(), 10)
        task.cancel()
    bench.feed.offer(finished(chat_answer(), request_id="r-4"))
    assert sorted(record.request_id for record in bench.records) == [f"r-{n}" for n in range(5)]
    assert {record.reason for record in bench.records} == {"shutdown"}


async def test_a_feed_that_never_ran_can_be_closed() -> None:
    bench = Bench()
    bench.feed.offer(finished(chat_answer()))
    bench.feed.close()
    bench.feed.close()
    assert [record.reason for record in bench.records] == ["shutdown"]


async def test_content_is_gone_after_the_replay_and_never_in_a_record() -> None:
    bench = Bench()
    messages = [{"role": "user", "content": SECRET}]
    async with bench.running():
        # No name for the answer here either.
        bench.feed.offer(
            finished(chat_answer(SECRET), request=chat_request(messages=messages), request_id="gone")
        )
        await asyncio.wait_for(bench.recorded.wait(), 10)
        await asyncio.sleep(0)
        gc.collect()
        kept = [thing for thing in gc.get_objects() if type(thing) is FinishedAnswer]
        assert "gone" not in [answer.facts.request_id for answer in kept]
    assert SECRET not in repr(bench.records)


def test_a_finished_answer_does_not_show_its_content() -> None:
    answer = finished(chat_answer(SECRET), request=chat_request(user=SECRET))
    assert SECRET in json.loads(answer.request_body)["user"]
    assert SECRET not in repr(answer)


def test_every_reason_is_one_word_for_a_metric_label() -> None:
    assert all(reason.value.replace("_", "").isalpha() for reason in SkipReason)


async def test_a_kill_drops_what_waits_and_what_is_being_replayed() -> None:
    bench = Bench()
    bench.gate.clear()
    async with bench.running():
        for turn, tenant in enumerate(("a", "a", "b")):
            bench.feed.offer(answer_of(tenant, f"r{turn}"))
        await until(lambda: len(bench.tokenized) == 2)
        bench.killed.add("a")
        bench.feed.check()
        await until(lambda: len(bench.records) == 2)
        assert {(record.request_id, record.action, record.reason) for record in bench.records} == {
            ("r0", "skip", "killed"),
            ("r1", "skip", "killed"),
        }
        bench.gate.set()
        await until(lambda: len(bench.records) == 3)
    assert (bench.records[-1].request_id, bench.records[-1].action) == ("r2", "would_speculate")
    assert [tenant for _, tenant, _ in bench.asked_for] == ["b"], "the others never came to a replay"


async def test_an_answer_that_a_kill_has_overtaken_is_not_taken() -> None:
    bench = Bench()
    bench.killed.add("a")
    record = await bench.measure(answer_of("a", "r"))
    assert (record.reason, bench.tokenized) == ("killed", [])


def answer_of(tenant: str, request_id: str) -> FinishedAnswer:
    answer = finished(chat_answer())
    return replace(answer, facts=replace(answer.facts, tenant=tenant, request_id=request_id))
