"""What the engine promises whatever it is asked at the same time, before, and however it speculates."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from draftrunner.drafters import DRAFTERS, make_drafters
from draftrunner.drafters.draft_model import DraftModelDrafter
from draftrunner.embedded.answers import Answer
from draftrunner.embedded.engine import Failure, Limits, QueueFull
from draftrunner.embedded.fitting import fitting
from draftrunner.embedded.generation import Ask, Emission, Mode
from draftrunner.embedded.prefixes import CHUNK
from draftrunner.embedded.prompts import Tokenizer
from draftrunner.embedded.sampling import Sampling
from draftrunner.embedded.target import LanguageModel
from draftrunner.model import NOBODY, DraftSession, Origin
from draftrunner.profiles import EMBEDDED
from draftrunner.replay import replay
from draftrunner.weights import Checkpoint, load_model, load_tokenizer
from tests.fakes.engine_runs import GREEDY, Deliveries, EngineRun, prod, running_engine
from tests.fakes.tiny_lm import CONTEXT_LENGTH, ScriptedModel, drifted
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

EVERY_DRAFTER = [*DRAFTERS, "draft_model"]
LOOKAHEADS = [1, 3, 5, 8]
SAMPLED = Sampling(temperature=0.8, top_p=0.95, top_k=0, seed=11)
PROMPTS = [
    "the quick brown fox jumps over the lazy dog",
    "def add(first, second):\n    return first + second\n" * 2,
    "one two three four five six seven one two three",
]
END = 1
VOCABULARY_SIZE = 300


def as_bytes(ids: Sequence[int]) -> str:
    return bytes(i for i in ids if i < 256).decode(errors="replace")


def scripted(script: Sequence[int], *, gated: bool = False, end_ids: Sequence[int] = (END,)) -> LanguageModel:
    model: Any = ScriptedModel(script, vocabulary_size=VOCABULARY_SIZE, gated=gated)
    return LanguageModel(model, end_ids=end_ids)


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint: Checkpoint) -> LanguageModel:
    return LanguageModel(load_model(tiny_checkpoint, "float32"), end_ids=())


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Checkpoint) -> Tokenizer:
    return Tokenizer(load_tokenizer(tiny_checkpoint))


@pytest.fixture(scope="module")
def run(tiny: LanguageModel, tokenizer: Tokenizer, tiny_checkpoint: Checkpoint) -> Iterator[EngineRun]:
    """With every drafter there is; the draft model is a target gone slightly wrong."""
    small = drifted(load_model(tiny_checkpoint, "float32"), 0.05)
    draft_model = DraftModelDrafter(small, known_ids=tiny.vocabulary_size)
    drafters = {
        name: fitting(profiles[EMBEDDED.name], tiny.context_length)
        for name, profiles in make_drafters(draft_model).items()
    }
    assert set(drafters) == set(EVERY_DRAFTER)
    with running_engine(tiny, tokenizer.decode, drafters=drafters) as running:
        yield running


@pytest.fixture(scope="module")
def asks(tokenizer: Tokenizer) -> list[Ask]:
    """Every prompt, greedy and sampled."""
    return [
        Ask(prompt=tuple(tokenizer.encode(text, add_special_tokens=True)), max_tokens=80, sampling=sampling)
        for text in PROMPTS
        for sampling in (GREEDY, SAMPLED)
    ]


@pytest.fixture(scope="module")
def plain(run: EngineRun, asks: list[Ask]) -> list[Answer]:
    """The answers without speculation."""
    return [run.answer(ask) for ask in asks]


# --- speculation changes nothing but the number of forwards -----------------------------------


@pytest.mark.parametrize("drafter", EVERY_DRAFTER)
@pytest.mark.parametrize("k", LOOKAHEADS)
def test_speculated_ids_equal_plain_ids(
    run: EngineRun, asks: list[Ask], plain: list[Answer], k: int, drafter: str
) -> None:
    speculated = [run.answer(ask, **prod(k), drafter=drafter) for ask in asks]
    assert [answer.token_ids for answer in speculated] == [answer.token_ids for answer in plain]
    assert [answer.text for answer in speculated] == [answer.text for answer in plain]
    assert passes(speculated) < passes(plain)


def passes(answers: Sequence[Answer]) -> int:
    return sum(len(answer.finish.steps) for answer in answers if answer.finish)


@pytest.mark.parametrize("drafter", EVERY_DRAFTER)
@pytest.mark.parametrize("k", LOOKAHEADS)
def test_replay_counts_what_the_live_run_counted(
    run: EngineRun, asks: list[Ask], k: int, drafter: str
) -> None:
    """Whatever has been learnt since, from these very answers."""
    for ask in asks:
        origin = Origin(tenant="t", as_of=time.time())
        answer = run.answer(ask, **prod(k), drafter=drafter, origin=origin)
        assert answer.finish is not None
        steps = [done for done in answer.finish.steps if done.drafted]
        would_be = replay(ask.prompt, answer.token_ids, run.drafters[drafter], [k], origin)[k]
        assert would_be.per_step_drafted == tuple(done.drafted for done in steps)
        assert would_be.per_step_accepted == tuple(done.accepted for done in steps)
        assert would_be.passes == len(answer.finish.steps)
        assert steps, "a run without drafts shows nothing"


def test_an_answer_may_be_speculated_up_to_the_contexts_end(run: EngineRun, asks: list[Ask]) -> None:
    ask = asks[0]
    room = {"max_tokens": CONTEXT_LENGTH - len(ask.prompt)}
    plain, speculated = run.answer(ask, **room), run.answer(ask, **room, **prod(8))
    assert speculated.token_ids == plain.token_ids
    assert len(ask.prompt) + len(plain.token_ids) == CONTEXT_LENGTH


def test_logprobs_come_for_every_token_however_it_was_made(run: EngineRun, asks: list[Ask]) -> None:
    plain, speculated = run.answer(asks[0], alternatives=2), run.answer(asks[0], alternatives=2, **prod(5))
    assert [told.token for told in speculated.logprobs] == speculated.token_ids == plain.token_ids
    for one, other in zip(plain.logprobs, speculated.logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert len(other.top) == 2


# --- how answers end --------------------------------------------------------------------------

REPEATED = [60, 61, 62, 63, 64, 65, 66]


@pytest.mark.parametrize("k", [0, *LOOKAHEADS])
@pytest.mark.parametrize("place", range(7))
def test_nothing_follows_an_end_of_sequence_accepted_inside_a_block(place: int, k: int) -> None:
    """BR-B06: the target agrees with the drafts beyond the end, too."""
    repeated = REPEATED.copy()
    repeated[place] = END
    script = [50, *repeated, *repeated, *repeated]
    prompt = tuple(script[: 1 + 7 + 3])
    with running_engine(scripted(script), as_bytes) as run:
        answer = run.answer(
            Ask(prompt=prompt, max_tokens=99, sampling=GREEDY, end_ids=frozenset({END})), **prod(k)
        )
        expected = script[len(prompt) : script.index(END, len(prompt)) + 1]
        assert answer.token_ids == expected
        assert answer.text == as_bytes(expected[:-1])
        assert answer.finish is not None
        assert (answer.finish.reason, answer.finish.stop) == ("stop", None)
        assert sum(len(done.tokens) for done in answer.finish.steps) == len(expected) - 1
        assert all(done.accepted <= len(done.tokens) for done in answer.finish.steps)


def test_an_end_of_sequence_that_only_the_draft_proposes_ends_nothing() -> None:
    script = [50, 60, 61, END, 62, 60, 61, 63, 64, END]
    with running_engine(scripted(script), as_bytes) as run:
        ask = Ask(prompt=tuple(script[:6]), max_tokens=99, sampling=GREEDY, end_ids=frozenset({END}))
        answer = run.answer(ask, **prod(4))
    assert answer.token_ids == [61, 63, 64, END]


def test_an_ignored_end_of_sequence_ends_nothing() -> None:
    script = [50, 60, END, 61, 62]
    with running_engine(scripted(script), as_bytes) as run:
        answer = run.answer(Ask(prompt=(50,), max_tokens=4, sampling=GREEDY))
    assert (answer.token_ids, answer.text) == ([60, END, 61, 62], "<\x01=>")


@pytest.mark.parametrize("k", [0, 5])
def test_the_first_of_several_stop_ids_ends_the_answer_and_has_no_text(k: int) -> None:
    script = [50, 60, 61, 62, 63, 60, 61, 62, 63]
    with running_engine(scripted(script), as_bytes) as run:
        ask = Ask(prompt=tuple(script[:6]), max_tokens=99, sampling=GREEDY, stop_ids=frozenset({62, 63}))
        answer = run.answer(ask, **prod(k))
    assert (answer.token_ids, answer.text) == ([61, 62], "=")
    assert answer.finish is not None
    assert (answer.finish.reason, answer.finish.stop) == ("stop", 62)


def test_the_last_steps_drafts_count_in_full_though_the_limit_cuts_them() -> None:
    script = [50, *REPEATED, *REPEATED, *REPEATED]
    with running_engine(scripted(script), as_bytes) as run:
        answer = run.answer(Ask(prompt=tuple(script[:10]), max_tokens=3, sampling=GREEDY), **prod(5))
    assert answer.token_ids == script[10:13]
    assert answer.finish is not None
    assert answer.finish.reason == "length"
    assert [(done.drafted, done.accepted) for done in answer.finish.steps] == [(5, 2)]


@pytest.mark.parametrize("k", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("shift", range(3))
def test_characters_stay_whole_wherever_a_block_ends(k: int, shift: int) -> None:
    """BR-B05: blocks end inside three-byte characters at every place."""
    text = "a" * shift + "€uro€s €" * 3
    script = [50, *text.encode(), *text.encode()]
    prompt = tuple(script[: 1 + len(text.encode())])
    ask = Ask(prompt=prompt, max_tokens=len(text.encode()), sampling=GREEDY)
    with running_engine(scripted(script), as_bytes) as run:
        deliveries = Deliveries()
        run.engine.submit([dataclasses.replace(ask, **prod(k))], deliveries)
        pieces = []
        finished = False
        while not finished:
            _, emission = deliveries.next()
            assert isinstance(emission, Emission)
            pieces.append(emission.text)
            finished = emission.finish is not None
    assert "".join(pieces) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@pytest.mark.parametrize("k", [0, 3])
def test_half_a_character_at_the_true_end_is_told_once(k: int) -> None:
    script = [50, *"€".encode(), *"€".encode()]
    with running_engine(scripted(script), as_bytes) as run:
        answer = run.answer(Ask(prompt=tuple(script[:4]), max_tokens=2, sampling=GREEDY), **prod(k))
    assert answer.text == "\N{REPLACEMENT CHARACTER}"


def test_a_stop_string_ends_the_answer_where_it_begins_at_every_place(
    run: EngineRun, asks: list[Ask]
) -> None:
    whole = run.answer(asks[0], max_tokens=24)
    for begin in range(len(whole.text) - 2):
        stop = whole.text[begin : begin + 3]
        plain = run.answer(asks[0], max_tokens=24, stop_strings=(stop,))
        speculated = run.answer(asks[0], max_tokens=24, stop_strings=(stop,), **prod(5))
        assert plain.text == speculated.text == whole.text[: whole.text.index(stop)]
        assert plain.token_ids == speculated.token_ids == whole.token_ids[: len(plain.token_ids)]
        assert plain.finish is not None
        assert (plain.finish.reason, plain.finish.stop) == ("stop", stop)


# --- what else happens does not matter --------------------------------------------------------


def test_answers_made_in_parallel_equal_answers_made_alone(run: EngineRun, asks: list[Ask]) -> None:
    mixed = [
        dataclasses.replace(ask, alternatives=1, **(prod(5) if place % 2 else {}))
        for place, ask in enumerate(asks)
    ]
    alone = [run.answer(ask) for ask in mixed]
    together = run.together(mixed)
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    # To the last bit: no forward is shared.
    assert [answer.logprobs for answer in together] == [answer.logprobs for answer in alone]


def test_a_reused_prefix_changes_nothing_to_the_last_bit(
    run: EngineRun, tiny: LanguageModel, tokenizer: Tokenizer
) -> None:
    text = "the quick brown fox jumps over the lazy dog " * 20
    prompts = [tuple(tokenizer.encode(text + end, add_special_tokens=True)) for end in ("one", "two")]
    asks = [Ask(prompt=prompt, max_tokens=20, sampling=SAMPLED, alternatives=1) for prompt in prompts]
    with running_engine(tiny, tokenizer.decode, kept_prefix_tokens=4 * CHUNK) as reusing:
        reused = [reusing.answer(ask) for ask in (asks[0], asks[0], asks[1])]
    fresh = [run.answer(ask) for ask in (asks[0], asks[0], asks[1])]
    assert [answer.logprobs for answer in reused] == [answer.logprobs for answer in fresh]
    cached = [answer.finish.cached_tokens for answer in reused if answer.finish]
    whole_chunks = (len(prompts[0]) - 1) // CHUNK * CHUNK
    assert cached == [0, whole_chunks, whole_chunks]


def test_a_prompt_longer_than_one_forward_is_read_as_a_whole(
    run: EngineRun, tiny: LanguageModel, tokenizer: Tokenizer
) -> None:
    text = "the quick brown fox jumps over the lazy dog " * 20
    prompt = tuple(tokenizer.encode(text, add_special_tokens=True))
    assert len(prompt) > CHUNK
    row = tiny.target(tiny.empty_cache()).prefill(prompt)
    answer = run.answer(Ask(prompt=prompt, max_tokens=1, sampling=GREEDY))
    assert answer.token_ids == [int(row.argmax())]


# --- the queue --------------------------------------------------------------------------------

LONG = Ask(prompt=(50,), max_tokens=500, sampling=GREEDY)


def gated_engine(limits: Limits) -> tuple[Any, Callable[[], Any]]:
    raw: Any = ScriptedModel([], vocabulary_size=VOCABULARY_SIZE, gated=True)
    return raw, lambda: running_engine(LanguageModel(raw, end_ids=()), as_bytes, limits=limits)


def test_a_request_is_queued_whole_or_not_at_all() -> None:
    raw, engine = gated_engine(Limits(running=1, waiting=1))
    with engine() as run:
        first = run.engine.submit([LONG], Deliveries())
        with pytest.raises(QueueFull):
            run.engine.submit([LONG, LONG], Deliveries())
        second = run.engine.submit([LONG], Deliveries())
        with pytest.raises(QueueFull):
            run.engine.submit([LONG], Deliveries())
        first.cancel()
        second.cancel()
        raw.let(1)


def test_a_cancelled_answer_frees_its_place_before_the_next_forward() -> None:
    raw, engine = gated_engine(Limits(running=1, waiting=1))
    with engine() as run:
        dropped, kept = Deliveries(), Deliveries()
        submission = run.engine.submit([LONG], dropped)
        run.engine.submit([dataclasses.replace(LONG, prompt=(77,), max_tokens=2)], kept)
        raw.let(2)
        dropped.next()
        dropped.next()
        submission.cancel()
        raw.let(3)
        kept.answers([dataclasses.replace(LONG, max_tokens=2)])
        forwards_for_nobody = len(raw.fed) - 2 - 2
        # One may have been under way when the client left.
        assert forwards_for_nobody <= 1


def test_a_request_turned_plain_drafts_no_more_from_the_next_forward_on() -> None:
    raw, engine = gated_engine(Limits(running=1, waiting=1))
    ask = dataclasses.replace(LONG, prompt=(0, 0, 0, 0), max_tokens=40, **prod(4))
    with engine() as run:
        deliveries = Deliveries()
        run.engine.submit([ask], deliveries, "r1")
        raw.let(3)
        for _ in range(3):
            deliveries.next()
        run.engine.decode_plainly(["r0"])
        raw.let(1)
        deliveries.next()
        run.engine.decode_plainly(["r0", "r1"])
        fed = len(raw.fed)
        raw.let(60)
        (answer,) = deliveries.answers([ask])
    widths = [len(tokens) for tokens in raw.fed[1:]]
    assert min(widths[: fed - 1]) > 1
    # One more forward may have been under way.
    assert set(widths[fed + 1 :]) == {1}
    assert answer.finish is not None
    assert answer.finish.steps[-1].drafted == 0


def test_a_waiting_request_turned_plain_never_drafts() -> None:
    raw, engine = gated_engine(Limits(running=1, waiting=1))
    ask = dataclasses.replace(LONG, prompt=(0, 0, 0, 0), max_tokens=10, **prod(4))
    with engine() as run:
        first, waiting = Deliveries(), Deliveries()
        run.engine.submit([dataclasses.replace(LONG, max_tokens=1)], first)
        run.engine.submit([ask], waiting, "r1")
        run.engine.decode_plainly(["r1"])
        raw.let(20)
        (answer,) = waiting.answers([ask])
    assert {len(tokens) for tokens in raw.fed[2:]} == {1}
    assert len(answer.token_ids) == 10


async def test_a_request_turned_plain_closes_its_session_and_is_not_learnt(watched: WatchedDrafter) -> None:
    raw: Any = ScriptedModel([], vocabulary_size=VOCABULARY_SIZE, gated=True)
    with watched_engine(LanguageModel(raw, end_ids=()), watched) as run:
        deliveries = Deliveries()
        ask = dataclasses.replace(ANSWERED, drafter="watched", origin=ORIGIN, max_tokens=9)
        run.engine.submit([ask], deliveries, "r1")
        raw.let(1)
        deliveries.next()
        run.engine.decode_plainly(["r1"])
        raw.let(30)
        await asyncio.to_thread(deliveries.answers, [ask])
        await until(lambda: bool(watched.closed))
    assert (len(watched.opened), len(watched.closed), watched.learnt) == (1, 1, [])


def test_a_waiting_prompt_that_is_cancelled_is_never_computed() -> None:
    raw, engine = gated_engine(Limits(running=1, waiting=2))
    with engine() as run:
        first, second, third = Deliveries(), Deliveries(), Deliveries()
        run.engine.submit([dataclasses.replace(LONG, max_tokens=1)], first)
        waiting = run.engine.submit([dataclasses.replace(LONG, prompt=(77,))], second)
        run.engine.submit([dataclasses.replace(LONG, max_tokens=1)], third)
        waiting.cancel()
        raw.let(2)
        first.next()
        third.next()
        assert raw.fed == [[50], [50]]
        assert second.empty


def test_generations_take_turns() -> None:
    raw, engine = gated_engine(Limits(running=2, waiting=0))
    with engine() as run:
        asks = [dataclasses.replace(LONG, prompt=(prompt,), max_tokens=3) for prompt in (50, 51)]
        deliveries = Deliveries()
        run.engine.submit(asks, deliveries)
        raw.let(6)
        assert [deliveries.next()[0] for _ in range(6)] == [0, 1, 0, 1, 0, 1]


def test_an_answer_that_fails_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    def undecodable(ids: Sequence[int]) -> str:
        if 66 in ids:
            raise ValueError("cannot decode 66")
        return as_bytes(ids)

    with running_engine(scripted([50, 60, 66]), undecodable) as run:
        deliveries = Deliveries()
        run.engine.submit([LONG], deliveries)
        assert isinstance(deliveries.next()[1], Emission)
        assert isinstance(deliveries.next()[1], Failure)
        assert run.answer(LONG, max_tokens=1).token_ids == [60]
    assert "cannot decode 66" in caplog.text


def test_closing_fails_what_is_unfinished() -> None:
    raw, engine = gated_engine(Limits(running=1, waiting=1))
    deliveries = Deliveries()
    with engine() as run:
        run.engine.submit([LONG, LONG], deliveries)
        raw.let(1)
        deliveries.next()
        closing = threading.Thread(target=run.engine.close)
        closing.start()
        while closing.is_alive():
            raw.let(1)
    last = {}
    while not deliveries.empty:
        index, event = deliveries.next()
        last[index] = event
    assert last == {0: Failure(), 1: Failure()}


# --- drafters ---------------------------------------------------------------------------------

ANSWERED = dataclasses.replace(LONG, max_tokens=3, **prod(2))
ORIGIN = Origin(tenant="t")


class WatchedDrafter:
    """Drafts nothing, and notes what is still open and what it learnt.

    Attributes:
        closed: Set with each session that is closed.
    """

    name = "watched"
    consistent = True

    def __init__(self) -> None:
        self.opened: list[Origin] = []
        self.closed: list[WatchedDrafter] = []
        self.learnt: list[tuple[list[int], Origin]] = []

    def open(self, prompt: Sequence[int], origin: Origin = NOBODY) -> DraftSession:
        self.opened.append(origin)
        return self

    def learn(self, answer: Sequence[int], origin: Origin) -> None:
        assert self.closed, "the session is over before its answer is learnt"
        self.learnt.append((list(answer), origin))

    def propose(self, k: int) -> list[int]:
        return []

    def extend(self, tokens: Sequence[int]) -> None:
        pass

    def close(self) -> None:
        self.closed.append(self)


@pytest.fixture
def watched() -> WatchedDrafter:
    return WatchedDrafter()


def watched_engine(model: LanguageModel, watched: WatchedDrafter) -> Any:
    return running_engine(model, as_bytes, drafters={"watched": watched})


def test_a_finished_answer_closes_its_session_and_is_learnt(watched: WatchedDrafter) -> None:
    with watched_engine(scripted([50, 60, 61, 62, 63]), watched) as run:
        run.answer(ANSWERED, drafter="watched", origin=ORIGIN)
    assert (watched.opened, len(watched.closed)) == ([ORIGIN], 1)
    assert watched.learnt == [([60, 61, 62], ORIGIN)]


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.SHADOW])
def test_what_is_not_speculated_is_not_drafted_for_and_not_learnt(
    watched: WatchedDrafter, mode: Mode
) -> None:
    with watched_engine(scripted([50, 60, 61, 62, 63]), watched) as run:
        run.answer(ANSWERED, drafter="watched", origin=ORIGIN, mode=mode)
    assert (watched.opened, watched.closed, watched.learnt) == ([], [], [])


async def test_an_answer_that_nobody_waits_for_closes_its_session_and_is_not_learnt(
    watched: WatchedDrafter,
) -> None:
    raw: Any = ScriptedModel([], vocabulary_size=VOCABULARY_SIZE, gated=True)
    with watched_engine(LanguageModel(raw, end_ids=()), watched) as run:
        deliveries = Deliveries()
        ask = dataclasses.replace(ANSWERED, drafter="watched", origin=ORIGIN, max_tokens=99)
        submission = run.engine.submit([ask], deliveries)
        raw.let(1)
        deliveries.next()
        submission.cancel()
        raw.let(1)
        await until(lambda: bool(watched.closed))
    assert (len(watched.opened), len(watched.closed), watched.learnt) == (1, 1, [])


def test_an_answer_that_fails_closes_its_session_and_is_not_learnt(watched: WatchedDrafter) -> None:
    def undecodable(ids: Sequence[int]) -> str:
        raise ValueError("cannot decode")

    with running_engine(scripted([50, 60]), undecodable, drafters={"watched": watched}) as run:
        deliveries = Deliveries()
        run.engine.submit([dataclasses.replace(ANSWERED, drafter="watched")], deliveries)
        assert isinstance(deliveries.next()[1], Failure)
    assert (len(watched.opened), len(watched.closed), watched.learnt) == (1, 1, [])


def test_an_engine_that_closes_closes_the_sessions_of_what_is_unfinished(watched: WatchedDrafter) -> None:
    raw: Any = ScriptedModel([], vocabulary_size=VOCABULARY_SIZE, gated=True)
    with watched_engine(LanguageModel(raw, end_ids=()), watched) as run:
        deliveries = Deliveries()
        run.engine.submit([dataclasses.replace(ANSWERED, drafter="watched", max_tokens=99)], deliveries)
        raw.let(1)
        deliveries.next()
        closing = threading.Thread(target=run.engine.close)
        closing.start()
        while closing.is_alive():
            raw.let(1)
    assert (len(watched.opened), len(watched.closed), watched.learnt) == (1, 1, [])


def test_a_drafter_that_fails_after_the_end_takes_no_answer_with_it(
    watched: WatchedDrafter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(answer: Sequence[int], origin: Origin) -> None:
        raise ValueError("no room to learn")

    monkeypatch.setattr(watched, "learn", failing)
    with watched_engine(scripted([50, 60, 61, 62, 63]), watched) as run:
        assert [run.answer(ANSWERED, drafter="watched").token_ids for _ in range(2)] == [[60, 61, 62]] * 2
    assert "no room to learn" in caplog.text


def test_an_answer_is_drafted_from_the_tenants_earlier_one(run: EngineRun, asks: list[Ask]) -> None:
    """Though it repeats nothing of its own prompt."""
    fields = {**prod(5), "drafter": "suffix", "origin": Origin(tenant="copying")}
    first, second = run.answer(asks[1], **fields), run.answer(asks[1], **fields)
    assert second.token_ids == first.token_ids
    assert passes([second]) < passes([first])


def test_the_metrics_count_every_step(run: EngineRun, asks: list[Ask], tiny: LanguageModel) -> None:
    with running_engine(tiny, str) as fresh:
        answer = fresh.answer(asks[0], **prod(5))
        text = fresh.metrics.exposition().decode()
    assert answer.finish is not None
    steps = answer.finish.steps
    widths = {1 + done.drafted for done in steps}
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    for width in widths:
        counted = float(samples[f'ace_embedded_pass_seconds_count{{width="{width}"}}'])
        assert counted == sum(1 + done.drafted == width for done in steps)
        assert float(samples[f'ace_embedded_pass_seconds_sum{{width="{width}"}}']) > 0
    assert float(samples["ace_embedded_generation_tokens_total"]) == len(answer.token_ids)
    assert float(samples["ace_embedded_prompt_tokens_total"]) == len(asks[0].prompt)
    assert float(samples["ace_embedded_spec_steps_total"]) == sum(done.drafted > 0 for done in steps)
    assert float(samples["ace_embedded_spec_draft_tokens_total"]) == sum(done.drafted for done in steps)
    assert float(samples["ace_embedded_spec_accepted_tokens_total"]) == sum(done.accepted for done in steps)
    assert float(samples["ace_embedded_requests_running"]) == 0
    assert float(samples["ace_embedded_requests_waiting"]) == 0
