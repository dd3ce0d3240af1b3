"""Does the engine speculate by itself, per request, as it is told? Asked by behaviour, of any engine.

The contract: `vllm_xargs: {"ace_mode": "off|shadow|prod", "ace_k": n}` in the request, counts in
`metrics.speculative_decoding` of the answer; without `ace_mode` nothing is speculated. An engine with several
drafters lists them as `drafters` in /version, and takes `ace_drafter`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from probes.model import Capability, Finding, Support
from probes.question import Question, Target, no, unknown, without_success, yes
from probes.wire import NoAnswer, Reply, clipped, dig, is_count

TOKENS_PER_RUN = 5
LONG, SHORT = 4, 1

PROMPT = "red orange yellow green blue indigo violet black white grey\n" * 3 + "red orange yellow"
"""Repeats itself, so that drafts copied from it exist, are long, and are right."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One way to ask for the same answer.

    Attributes:
        words: The request's `vllm_xargs`; empty for a request without any.
        k: The lookahead among them; 0 without one.
    """

    words: Mapping[str, object] = field(default_factory=dict)
    k: int = 0
    stream: bool = False

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.words.items()) or "no ace_mode"


NOTHING = Asked()
OFF = Asked({"ace_mode": "off"})
SHADOW = Asked({"ace_mode": "shadow", "ace_k": LONG}, LONG, stream=True)
PROD = Asked({"ace_mode": "prod", "ace_k": LONG}, LONG)
SHORT_PROD = Asked({"ace_mode": "prod", "ace_k": SHORT}, SHORT)
RUNS = (PROD, NOTHING, OFF, SHADOW, SHORT_PROD)
"""Every way of asking; the first alone tells a server that knows nothing of the contract."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of one of them.

    Attributes:
        ids: Token ids of the answer; empty where the engine gives none.
        report: Its `metrics.speculative_decoding`.
    """

    asked: Asked
    text: str
    ids: tuple[Any, ...]
    report: Any


@dataclass(frozen=True, slots=True)
class Counts:
    """A report without contradictions."""

    asked: Asked
    steps: int
    drafted: int
    accepted: int

    def __str__(self) -> str:
        return f"{self.asked}: {self.accepted} of {self.drafted} drafts accepted in {self.steps} steps"


class Unanswered(Exception):
    """A run was not answered with success."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.evidence)
        self.reply = reply


class Broken(Exception):
    """The answers show that the contract is not kept; the message says where."""


async def ask_in_engine(target: Target) -> Finding:
    """Does it keep the `in_engine` contract? The value is the drafters that it lists."""
    try:
        first = await _run(target, PROD)
        if first.report is None:
            seen = f"{PROD} is ignored: no metrics.speculative_decoding in the answer"
            return no(Capability.IN_ENGINE, seen)
        found = _judge([first, *[await _run(target, asked) for asked in RUNS[1:]]])
        return replace(found, value=await _drafters(target)) if found.support is Support.YES else found
    except Unanswered as unanswered:
        return without_success(Capability.IN_ENGINE, unanswered.reply)
    except Broken as broken:
        return no(Capability.IN_ENGINE, str(broken))


async def _run(target: Target, asked: Asked) -> Run:
    fields: dict[str, Any] = {"return_token_ids": True}
    if asked.words:
        fields["vllm_xargs"] = dict(asked.words)
    if asked.stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    reply = await target.complete(PROMPT, TOKENS_PER_RUN, **fields)
    if not reply.ok:
        raise Unanswered(reply)
    documents = reply.events() if asked.stream else [reply.document]
    texts = [dig(document, "choices", 0, "text") for document in documents]
    ids = [dig(document, "choices", 0, "token_ids") for document in documents]
    reports = [dig(document, "metrics", "speculative_decoding") for document in documents]
    return Run(
        asked=asked,
        text="".join(text for text in texts if isinstance(text, str)),
        ids=tuple(token for delta in ids if isinstance(delta, list) for token in delta),
        report=next((report for report in reports if report is not None), None),
    )


async def _drafters(target: Target) -> list[str] | None:
    """Those that the engine lists; None where it lists none."""
    try:
        listed = (await target.wire.get("/version")).dig("drafters")
    except NoAnswer:
        return None
    named = isinstance(listed, list) and all(isinstance(name, str) for name in listed)
    return listed if named else None


def _judge(runs: Sequence[Run]) -> Finding:
    for run in runs:
        _check_same_answer(run, runs[0])
        if not run.asked.k and run.report is not None:
            raise Broken(f"{run.asked} is speculated all the same: {clipped(str(run.report))}")
    counts = [_counts(run) for run in runs if run.asked.k]
    seen = "; ".join(map(str, counts))
    if not all(count.steps for count in counts):
        return unknown(Capability.IN_ENGINE, f"the model copied nothing, so nothing was drafted: {seen}")
    if all(count.drafted == count.steps for count in counts):
        return unknown(Capability.IN_ENGINE, f"drafts were too short to tell K={LONG} from K={SHORT}: {seen}")
    return yes(Capability.IN_ENGINE, f"{seen}; the same {TOKENS_PER_RUN} tokens as without")


def _check_same_answer(run: Run, other: Run) -> None:
    if run.ids and other.ids and run.ids != other.ids:
        raise Broken(f"{other.asked} wrote the ids {list(other.ids)}, {run.asked} {list(run.ids)}")
    if run.text != other.text:
        raise Broken(f"{other.asked} wrote {clipped(other.text)!r}, {run.asked} {clipped(run.text)!r}")


def _counts(run: Run) -> Counts:
    """The report as counts, if they contradict neither each other nor the K that was asked for."""
    names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    steps, drafted, accepted = (dig(run.report, name) for name in names)
    histogram = dig(run.report, "acceptance_histogram")
    if not all(is_count(count) for count in (steps, drafted, accepted)):
        raise Broken(f"{run.asked} reports no counts: {clipped(str(run.report))}")
    if not isinstance(histogram, list) or not all(is_count(entry) for entry in histogram):
        raise Broken(f"{run.asked} reports no acceptance_histogram: {clipped(str(run.report))}")
    counts = Counts(run.asked, steps, drafted, accepted)
    by_histogram = (sum(histogram), sum(place * entry for place, entry in enumerate(histogram)))
    if accepted > drafted or steps > drafted or by_histogram != (steps, accepted):
        raise Broken(f"contradictory counts: {counts}, acceptance_histogram {clipped(str(histogram))}")
    if drafted > run.asked.k * steps or any(histogram[run.asked.k + 1 :]):
        raise Broken(f"more drafts than K: {counts}, acceptance_histogram {clipped(str(histogram))}")
    return counts


IN_ENGINE = Question(capability=Capability.IN_ENGINE, tokens=len(RUNS) * TOKENS_PER_RUN, ask=ask_in_engine)
