"""Whether a draft model's tokenizer is its target's, id by id (design.md 9; public report B01).

A pair whose ids mean other texts drafts garbage in silence: nothing errors, and next to nothing is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What a tokenizer says of its ids.

    Attributes:
        pieces: How each id is spelled; None for an id without a token.
        special: Ids that stand for no text of the answer.
        begin: The beginning-of-sequence id, if there is one.
        end: The end-of-sequence id, if there is one.
        size: How many ids the model has; those beyond `pieces` are padding that it never uses.
    """

    pieces: tuple[str | None, ...]
    special: frozenset[int]
    begin: int | None
    end: int | None
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What comparing two vocabularies found.

    Attributes:
        agrees: Whether the pair may be drafted with.
        sentence: Why not, with the first differing id; or on how many ids they agree, and what is padding.
        first_differing_id: None when they agree, or differ in something else than an id.
    """

    agrees: bool
    sentence: str
    first_differing_id: int | None = None


def compare_tokenizers(
    target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, *, target_size: int, draft_size: int
) -> Comparison:
    """Compare two tokenizers id by id, special tokens included.

    Args:
        target: The target's.
        draft: The draft model's.
        target_size: How many ids the target model has.
        draft_size: How many ids the draft model has.
    """
    return compare(vocabulary(target, target_size), vocabulary(draft, draft_size))


def vocabulary(tokenizer: PreTrainedTokenizerBase, size: int) -> Vocabulary:
    """What `tokenizer` says of the ids of a model that has `size` of them."""
    pieces: list[str | None] = [None] * (max(tokenizer.get_vocab().values(), default=-1) + 1)
    for piece, token_id in tokenizer.get_vocab().items():
        pieces[token_id] = piece
    return Vocabulary(
        pieces=tuple(pieces),
        special=frozenset(tokenizer.all_special_ids),
        begin=tokenizer.bos_token_id,
        end=tokenizer.eos_token_id,
        size=size,
    )


def compare(target: Vocabulary, draft: Vocabulary) -> Comparison:
    """Compare what two tokenizers say of their ids."""
    for token_id, (theirs, ours) in enumerate(zip_longest(target.pieces, draft.pieces)):
        theirs_spelled = _spelled(theirs, token_id in target.special)
        ours_spelled = _spelled(ours, token_id in draft.special)
        if theirs_spelled != ours_spelled:
            return Comparison(
                agrees=False,
                sentence=f"the tokenizers differ, first at id {token_id}: {theirs_spelled} of the target "
                f"and {ours_spelled} of the draft model",
                first_differing_id=token_id,
            )
    if (target.begin, target.end) != (draft.begin, draft.end):
        return Comparison(
            agrees=False,
            sentence="the tokenizers differ in where a text begins and ends: ids "
            f"{target.begin} and {target.end} of the target, {draft.begin} and {draft.end} of the draft",
        )
    count = len(target.pieces)
    unused = max(target.size, draft.size) - count
    padding = f"; {unused} more are unused padding" if unused > 0 else ""
    return Comparison(agrees=True, sentence=f"the tokenizers agree on all {count:,} ids{padding}")


def _spelled(piece: str | None, special: bool) -> str:
    if piece is None:
        return "no token"
    return f"the special token {piece!r}" if special else f"the token {piece!r}"
