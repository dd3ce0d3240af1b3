"""Does the engine return its own choice at each position of a draft that somebody else made?

The contract: `vllm_xargs: {"ace_score": d}` on a prompt of token ids whose last `d` are the draft, with
`max_tokens: 1`; the answer's `ace_score` holds `d + 1` choices, and whether the answer ends with each. They
are the choices of plain decoding: greedily the same ids, with a seed the very same draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probes.in_engine import PROMPT
from probes.model import Capability, Finding
from probes.question import Question, Target, no, unknown, without_success, yes
from probes.wire import Reply, are_ids, clipped

PROMPT_IDS = [5, 6, 7, 8]
DRAFT = 2
TOKENS_WRITTEN = DRAFT + 1
SAMPLED: Mapping[str, Any] = {"temperature": 1, "seed": 20_011}
HOWS: Sequence[tuple[str, Mapping[str, Any]]] = (("greedily", {}), ("drawing from a seed", SAMPLED))


class Judged(Exception):
    """The question has its answer before its end."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.evidence)
        self.finding = finding


async def ask_scored(target: Target) -> Finding:
    """Are the choices that it returns for a draft those of plain decoding?"""
    try:
        await _scored(target, PROMPT_IDS, {})
        for how, fields in HOWS:
            prompt, written = await _written(target, fields)
            await _expect(target, prompt, written[:DRAFT], written, f"{how}, a draft that is right", fields)
        # The choice before a draft's token does not depend on what that token is.
        wrong = [written[0] + 1 if written[0] else 1, *written[1:DRAFT]]
        await _expect(target, prompt, wrong, written[:1], "a draft that is wrong", SAMPLED)
    except Judged as ended:
        return ended.finding
    hows = " and ".join(how for how, _ in HOWS)
    return yes(Capability.SCORED, f"{hows}, a draft's {TOKENS_WRITTEN} choices are those of plain decoding")


async def _written(target: Target, fields: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """The ids of a prompt, and what plain decoding writes after it."""
    reply = await target.complete(PROMPT, TOKENS_WRITTEN, return_token_ids=True, **fields)
    if not reply.ok:
        raise Judged(without_success(Capability.SCORED, reply))
    prompt = reply.dig("choices", 0, "prompt_token_ids")
    written = reply.dig("choices", 0, "token_ids")
    if not (are_ids(prompt) and are_ids(written) and len(written) == TOKENS_WRITTEN):
        seen = f"no {TOKENS_WRITTEN} ids of plain decoding to compare with: {reply.evidence}"
        raise Judged(unknown(Capability.SCORED, seen))
    return prompt, written


async def _expect(
    target: Target,
    prompt: list[int],
    draft: list[int],
    choices: list[int],
    what: str,
    fields: Mapping[str, Any],
) -> None:
    """The first choices have to be these."""
    found = await _scored(target, [*prompt, *draft], fields, len(draft))
    if found[: len(choices)] != choices:
        seen = f"{what}: chose {found} where plain decoding chose {choices}"
        raise Judged(no(Capability.SCORED, seen))


async def _scored(
    target: Target, ids: list[int], fields: Mapping[str, Any], draft_length: int = 0
) -> list[int]:
    words = {"ace_score": draft_length}
    reply = await target.complete(ids, 1, vllm_xargs=words, **fields)
    if not reply.ok:
        raise Judged(without_success(Capability.SCORED, reply))
    if reply.dig("ace_score") is None:
        raise Judged(no(Capability.SCORED, "vllm_xargs.ace_score is ignored: no ace_score in the answer"))
    return _choices(reply, draft_length + 1)


def _choices(reply: Reply, count: int) -> list[int]:
    choices, ends = reply.dig("ace_score", "choices"), reply.dig("ace_score", "ends")
    well_formed = are_ids(choices) and isinstance(ends, list) and all(isinstance(end, bool) for end in ends)
    if not well_formed or not len(choices) == len(ends) == count:
        seen = f"no {count} choices and ends: {clipped(str(reply.dig('ace_score')))}"
        raise Judged(no(Capability.SCORED, seen))
    found: list[int] = choices
    return found


SCORED = Question(
    capability=Capability.SCORED,
    # The first call, and for each way of choosing a plain answer and a draft; then one draft more.
    tokens=1 + len(HOWS) * (TOKENS_WRITTEN + 1) + 1,
    ask=ask_scored,
)
