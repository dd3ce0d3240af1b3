"""The one accept rule (Leviathan et al. 2023, specialised to the target's own choices).

A draft token is accepted if and only if it equals the token that the target itself chooses at
that position. The choice at each position is drawn from the target's distribution given the
tokens before it, and drafts never influence a draw, so what is emitted follows the target
whatever was proposed: exactly for greedy decoding, in distribution for sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verification emits.

    Attributes:
        accepted: Length of the longest agreeing prefix of the draft.
        tokens: The accepted drafts, then the correction (first disagreement) or the bonus token.
    """

    accepted: int
    tokens: tuple[int, ...]


def verify(draft: Sequence[int], choose: Callable[[int], int]) -> Verdict:
    """Verify `draft` against the target's own choices.

    Args:
        draft: Proposed token ids; may be empty (a plain pass).
        choose: `choose(i)` is the target's choice after the context and `draft[:i]`. It is asked
            in order and never beyond the first disagreement.
    """
    emitted: list[int] = []
    for position, proposed in enumerate(draft):
        emitted.append(choose(position))
        if emitted[-1] != proposed:
            return Verdict(accepted=position, tokens=tuple(emitted))
    emitted.append(choose(len(draft)))
    return Verdict(accepted=len(draft), tokens=tuple(emitted))
