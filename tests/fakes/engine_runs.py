"""The embedded engine as a test drives it: prompts in, whole answers out."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from draftrunner.drafters import DRAFTERS
from draftrunner.embedded.answers import Answer
from draftrunner.embedded.contexts import ContextStore
from draftrunner.embedded.engine import Engine, Failure, Limits
from draftrunner.embedded.fitting import fitting
from draftrunner.embedded.generation import Ask, Emission, Mode
from draftrunner.embedded.metrics import EngineMetrics
from draftrunner.embedded.prefixes import PrefixStore
from draftrunner.embedded.sampling import Sampling
from draftrunner.embedded.target import LanguageModel
from draftrunner.model import Drafter
from draftrunner.profiles import EMBEDDED

PATIENCE_S = 60
"""How long a test waits for what must come before it fails."""

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=None)


class Deliveries:
    """What the engine delivered for one request, in order."""

    def __init__(self) -> None:
        self._queue: queue.Queue[tuple[int, Emission | Failure]] = queue.Queue()

    def __call__(self, index: int, event: Emission | Failure) -> None:
        self._queue.put((index, event))

    def next(self) -> tuple[int, Emission | Failure]:
        return self._queue.get(timeout=PATIENCE_S)

    @property
    def empty(self) -> bool:
        return self._queue.empty()

    def answers(self, asks: Sequence[Ask]) -> list[Answer]:
        """Wait for all answers of the request."""
        answers = [Answer(ask) for ask in asks]
        while any(answer.finish is None for answer in answers):
            index, event = self.next()
            assert isinstance(event, Emission), "the answer failed; see the log"
            answers[index].add(event)
        return answers


class EngineRun:
    """A running engine."""

    def __init__(self, engine: Engine, drafters: Mapping[str, Drafter], metrics: EngineMetrics) -> None:
        self.engine = engine
        self.drafters = drafters
        self.metrics = metrics

    def answer(self, ask: Ask, **changes: Any) -> Answer:
        """One answer to `ask`, with some of its fields changed."""
        (answer,) = self.together([replace(ask, **changes)])
        return answer

    def together(self, asks: Sequence[Ask]) -> list[Answer]:
        """The answers to prompts that are in the engine at the same time."""
        deliveries = Deliveries()
        self.engine.submit(asks, deliveries)
        return deliveries.answers(asks)


@contextlib.contextmanager
def running_engine(
    model: LanguageModel,
    decode: Callable[[Sequence[int]], str],
    *,
    limits: Limits | None = None,
    kept_prefix_tokens: int = 0,
    kept_context_tokens: int = 10_000,
    drafters: Mapping[str, Drafter] | None = None,
) -> Iterator[EngineRun]:
    """Run an engine for the enclosed block. By default it has every drafter, and keeps no prefixes."""
    if drafters is None:
        drafters = {name: fitting(make(EMBEDDED), model.context_length) for name, make in DRAFTERS.items()}
    metrics = EngineMetrics()
    engine = Engine(
        model=model,
        decode=decode,
        drafters=drafters,
        prefixes=PrefixStore(most_tokens=kept_prefix_tokens),
        contexts=ContextStore(most_tokens=kept_context_tokens),
        metrics=metrics,
        limits=limits or Limits(),
    )
    engine.start()
    try:
        yield EngineRun(engine, drafters, metrics)
    finally:
        engine.close()


def prod(k: int) -> dict[str, Any]:
    """The fields of an ask that speculates."""
    return {"mode": Mode.PROD, "k": k}
