from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from draftrunner.drafters import draft_model  # noqa: E402 - after the skip
from draftrunner.drafters.draft_model import DraftModelDrafter  # noqa: E402
from draftrunner.errors import StartError  # noqa: E402
from draftrunner.model import Drafter, TeacherForced  # noqa: E402
from draftrunner.replay import replay  # noqa: E402
from tests.fakes.target import Ending, generate, own_choice  # noqa: E402
from tests.fakes.tiny_lm import drifted  # noqa: E402
from tests.fakes.waiting import until  # noqa: E402

VOCABULARY = 50
CONTEXT = 96
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.4,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "qwen": lambda: transformers.Qwen2Config(**SMALL, tie_word_embeddings=True),
    "learned positions": lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=CONTEXT, initializer_range=0.4
    ),
}
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)


def random_model(config: Any, seed: int = 1) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return transformers.AutoModelForCausalLM.from_config(config).eval()


LLAMA = random_model(CONFIGS["llama"]())


def drafting(model: Any = LLAMA, **options: Any) -> DraftModelDrafter:
    return DraftModelDrafter(model, **{"known_ids": VOCABULARY, "slots": 3, **options})


def own_next(model: Any) -> Callable[[tuple[int, ...]], int]:
    """The model's likeliest token after any context, each from a forward of its own without a cache."""

    @functools.cache
    def likeliest(context: tuple[int, ...]) -> int:
        with torch.inference_mode():
            return int(model(input_ids=torch.tensor([context]), use_cache=False).logits[0, -1].argmax())

    return likeliest


def continued(likeliest: Callable[[tuple[int, ...]], int], context: Sequence[int], k: int) -> list[int]:
    """`k` tokens, each the likeliest after those before it."""
    whole = list(context)
    for _ in range(k):
        whole.append(likeliest(tuple(whole)))
    return whole[len(context) :]


class Watched:
    """A model that notes the shape of each forward, and may be told to hold or to fail.

    Attributes:
        shapes: Rows and columns of every forward so far.
        let: Forwards wait for it.
        error: Raised by every forward while it is set.
    """

    def __init__(self, model: Any) -> None:
        self.shapes: list[tuple[int, int]] = []
        self.let = threading.Event()
        self.let.set()
        self.began = threading.Event()
        self.error: Exception | None = None
        self.config, self.device, self.dtype = model.config, model.device, model.dtype
        self.get_input_embeddings = model.get_input_embeddings
        self.get_output_embeddings = model.get_output_embeddings
        self._body = model.base_model

    def base_model(self, **arguments: Any) -> Any:
        self.shapes.append(tuple(arguments["input_ids"].shape))
        self.began.set()
        assert self.let.wait(timeout=30)
        if self.error:
            raise self.error
        return self._body(**arguments)


# --- what is proposed ------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(3))
def test_a_proposal_is_the_models_own_continuation_whatever_was_accepted_before(name: str, seed: int) -> None:
    model = random_model(CONFIGS[name]())
    likeliest = own_next(model)
    draw = random.Random(seed)
    context = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, 40))]
    session = drafting(model).open(context)
    for _ in range(12):
        k = draw.randrange(9)
        draft = session.propose(k)
        assert draft == continued(likeliest, context, min(k, CONTEXT - len(context)))
        emitted = [*draft[: draw.randrange(len(draft) + 1)], draw.randrange(VOCABULARY)]
        session.extend(emitted)
        context += emitted


def test_only_what_was_not_accepted_is_computed_again() -> None:
    model = Watched(LLAMA)
    session = drafting(model).open(PROMPT)
    first, second, third, _ = session.propose(4)
    assert model.shapes == [(1, 8), (1, 1), (1, 1), (1, 1)]
    model.shapes.clear()
    correction = (third + 1) % VOCABULARY
    session.extend([first, second, correction])
    session.propose(1)
    assert model.shapes == [(1, 1)], "the two accepted tokens were fed when they were proposed"


def test_a_proposal_that_was_accepted_whole_leaves_two_tokens_to_feed() -> None:
    """Its last token, which nothing was drafted after, and the bonus."""
    model = Watched(LLAMA)
    session = drafting(model).open(PROMPT)
    draft = session.propose(3)
    model.shapes.clear()
    session.extend([*draft, 7])
    session.propose(1)
    assert model.shapes == [(1, 2)]


def test_ids_that_the_model_lacks_are_read_as_id_0() -> None:
    drafter = drafting()
    assert drafter.open([5, 2**31 - 1, VOCABULARY]).propose(4) == drafter.open([5, 0, 0]).propose(4)
    assert drafter.greedy([5, VOCABULARY], [1, 2]) == drafter.greedy([5, 0], [1, 2])


def test_rows_beyond_the_tokenizer_are_never_proposed() -> None:
    drafter = drafting(known_ids=10)
    assert all(token < 10 for token in drafter.open(PROMPT).propose(16))
    assert all(token < 10 for token in drafter.greedy(PROMPT, range(30)))


@pytest.mark.parametrize("family", CONFIGS)
def test_a_token_map_limits_what_is_proposed_to_the_likeliest_of_its_ids(family: str) -> None:
    model = random_model(CONFIGS[family]())
    hot = torch.tensor([3, 8, 11, 12, 30, VOCABULARY + 5])

    def likeliest(context: tuple[int, ...]) -> int:
        with torch.inference_mode():
            scores = model(input_ids=torch.tensor([context]), use_cache=False).logits[0, -1]
        return int(hot[:-1][scores[hot[:-1]].argmax()])

    drafter = drafting(model, hot_ids=hot)
    assert drafter.open(PROMPT).propose(6) == continued(likeliest, PROMPT, 6)
    whole = (*PROMPT, 7, 9)
    assert drafter.greedy(PROMPT, [7, 9, 1]) == [likeliest(whole[: len(PROMPT) + n]) for n in range(3)]


@pytest.mark.parametrize("k", [0, 3])
def test_an_empty_context_has_no_continuation(k: int) -> None:
    assert drafting().open([]).propose(k) == []


# --- the end of the context ------------------------------------------------------------------


def test_proposals_end_where_the_models_context_does() -> None:
    drafter = drafting()
    context = [1] * (CONTEXT - 2)
    session = drafter.open(context)
    assert len(session.propose(5)) == drafter.room(len(context)) == 2
    session.extend([1, 1])
    assert session.propose(5) == []


def test_an_answer_that_outgrows_the_model_is_counted_once() -> None:
    drafter = drafting()
    session = drafter.open([1] * (CONTEXT + 5))
    assert [session.propose(5), session.propose(5)] == [[], []]
    session.extend([1])
    assert session.propose(5) == []
    assert drafter.outgrown == 1


# --- several answers -------------------------------------------------------------------------


async def test_answers_that_want_drafts_at_the_same_time_share_forwards() -> None:
    model = Watched(LLAMA)
    drafter = drafting(model)
    prompts = [PROMPT[:length] for length in (8, 3, 5)]
    sessions = [drafter.open(prompt) for prompt in prompts]
    for session in sessions:
        session.propose(1)
    model.let.clear()
    model.began.clear()
    model.shapes.clear()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(drafter.open(PROMPT).propose, 2)
        assert model.began.wait(timeout=30)
        others = [pool.submit(session.propose, k) for session, k in zip(sessions, (4, 2, 3), strict=True)]
        await until(lambda: len(drafter._model._asks) == 3)
        model.let.set()
        drafts = [other.result() for other in others]
        first.result()
    assert [rows for rows, _ in model.shapes] == [1, 1, 3, 3, 2, 1]
    likeliest = own_next(LLAMA)
    assert drafts == [continued(likeliest, prompt, k) for prompt, k in zip(prompts, (4, 2, 3), strict=True)]


def test_more_answers_than_slots_are_all_drafted_rightly_from_any_thread() -> None:
    drafter = drafting(slots=2)
    likeliest = own_next(LLAMA)

    def answer(seed: int) -> list[tuple[list[int], list[int]]]:
        draw = random.Random(seed)
        context = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, 50))]
        session = drafter.open(context)
        compared = []
        for _ in range(8):
            draft = session.propose(draw.randrange(1, 6))
            compared.append((draft, continued(likeliest, context, len(draft))))
            emitted = [*draft[: draw.randrange(len(draft) + 1)], draw.randrange(VOCABULARY)]
            session.extend(emitted)
            context += emitted
        session.close()
        return compared

    with ThreadPoolExecutor(6) as pool:
        for compared in pool.map(answer, range(12)):
            for draft, expected in compared:
                assert draft == expected


def test_a_closed_session_leaves_its_slot_to_the_next() -> None:
    model = Watched(LLAMA)
    drafter = drafting(model, slots=2)
    kept, closed = drafter.open(PROMPT), drafter.open(PROMPT)
    kept.propose(1)
    closed.propose(1)
    closed.close()
    drafter.open(PROMPT).propose(1)
    model.shapes.clear()
    kept.propose(1)
    assert model.shapes == [(1, 1)], "its keys and values are still there"


# --- failures --------------------------------------------------------------------------------


def test_an_answer_whose_forward_fails_goes_on_without_drafts(caplog: pytest.LogCaptureFixture) -> None:
    model = Watched(LLAMA)
    drafter = drafting(model)
    session = drafter.open(PROMPT)
    model.error = RuntimeError("out of memory")
    assert session.propose(3) == []
    model.error = None
    session.extend([1])
    assert session.propose(3) == []
    assert "goes on without drafts" in caplog.text
    assert len(drafter.open(PROMPT).propose(3)) == 3, "the next answer is drafted again"


def test_a_fault_that_is_no_forwards_is_not_hidden() -> None:
    model = Watched(LLAMA)
    model.error = TypeError("a bug")
    with pytest.raises(TypeError, match="a bug"):
        drafting(model).open(PROMPT).propose(3)


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ({"layer_types": ["sliding_attention"], "max_position_embeddings": 9}, "sliding_attention"),
        ({}, "context length is not known"),
    ],
)
def test_a_model_that_the_slots_cannot_serve_is_refused(facts: dict[str, Any], complaint: str) -> None:
    with pytest.raises(StartError, match=complaint):
        draft_model.check_draftable(SimpleNamespace(**facts))


# --- a finished answer in one pass -----------------------------------------------------------


def test_its_guesses_are_its_own_next_tokens() -> None:
    drafter: Drafter = drafting()
    assert isinstance(drafter, TeacherForced)
    likeliest = own_next(LLAMA)
    answer = [7, 8, 9, 10]
    expected = [likeliest((*PROMPT, *answer[:length])) for length in range(4)]
    assert drafter.greedy(PROMPT, answer) == expected
    assert drafter.greedy([], answer)[1:] == [likeliest(tuple(answer[:length])) for length in (1, 2, 3)]


def test_guesses_end_with_the_models_context() -> None:
    drafter = drafting()
    assert len(drafter.greedy([1] * (CONTEXT - 2), [1] * 10)) == 3
    assert drafter.greedy([1] * (CONTEXT + 1), [1] * 10) == []


@pytest.fixture(scope="module")
def similar() -> tuple[Any, Any]:
    """A target, and a draft model that often but not always agrees with it."""
    target, draft = (
        random_model(transformers.LlamaConfig(**{**SMALL, "max_position_embeddings": 256})) for _ in "12"
    )
    return target, drifted(draft, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("most", [40, 150])
def test_replay_counts_what_a_live_run_counts(similar: tuple[Any, Any], most: int) -> None:
    """Also where the answer outgrows the draft model: its context is that of `DraftModelDrafter`."""
    target, draft = similar
    rule = own_next(target)
    drafter = drafting(draft)
    drafter.context_length = 100
    answer, _ = generate(rule, own_choice, PROMPT, Ending(most=most))
    curve = replay(PROMPT, answer, drafter, range(1, 9))
    for k in range(1, 9):
        session = drafter.open(PROMPT)
        live, steps = generate(rule, own_choice, PROMPT, Ending(most=most), session=session, k=k)
        session.close()
        assert live == answer
        verified = [step for step in steps if step.drafted]
        assert curve[k].passes == len(steps)
        assert curve[k].per_step_drafted == tuple(step.drafted for step in verified)
        assert curve[k].per_step_accepted == tuple(step.accepted for step in verified)
        assert 0 < curve[k].accepted_tokens < curve[k].draft_tokens


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_drafts_what_the_cpu_drafts() -> None:
    model = random_model(CONFIGS["llama"]())
    drafts = drafting(model).open(PROMPT).propose(8)
    on_cuda = drafting(model.to("cuda"))
    assert on_cuda.open(PROMPT).propose(8) == drafts
    assert on_cuda.greedy(PROMPT, drafts) == drafts
