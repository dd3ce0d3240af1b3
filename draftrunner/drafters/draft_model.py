"""Drafting with a smaller model of the target's tokenizer (Leviathan et al. 2023; Chen et al. 2023).

The proposal is the model's greedy continuation: one-hot, so the one accept rule of `draftrunner.verify`
fits. Answers that want a proposal at the same time share the forwards.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from draftrunner.drafters.slots import Places, SlotCache
from draftrunner.errors import StartError
from draftrunner.model import NOBODY, DraftSession, Origin

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SLOTS = 16
"""Answers whose keys and values are kept. Those of one more take the place of the longest unused."""

LONGEST_CONTEXT = 4096
"""Most positions of a slot, however many more the model could hold."""

_ALONE = 32
"""A sequence with more tokens to catch up on is fed by itself, or all others would be padded to it."""

_LOGITS_AT_ONCE = 512
"""Positions of a finished answer whose logits are held together; it bounds the memory of a replay."""

logger = logging.getLogger(__name__)


class DraftModelDrafter:
    """Proposes what a smaller language model would say next. Safe to use from several threads.

    Exact up to rounding: a proposal may differ from another for the same context where the model's two
    best tokens are as good as equal. Ids that its vocabulary lacks are read as id 0.

    Attributes:
        context_length: Most tokens of prompt and answer together; beyond it nothing is proposed.
        outgrown: Answers, so far, that went beyond it.
    """

    name = "draft_model"
    consistent = True

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        known_ids: int,
        hot_ids: torch.Tensor | None = None,
        slots: int = SLOTS,
    ) -> None:
        """Wrap `model`, which is ready for inference.

        Args:
            model: A causal language model; its device and dtype are drafted in.
            known_ids: Proposals are below this; the rows above it of a padded vocabulary are no tokens.
            hot_ids: The only ids to propose; None for all. shape: [n]
            slots: How many answers' keys and values to keep.

        Raises:
            StartError: Its layers or its context length do not fit the cache kept here.
        """
        config: Any = model.config.get_text_config()
        check_draftable(config)
        self.context_length = usable_context(config)
        self.outgrown = 0
        self._counting = threading.Lock()
        proposable = torch.arange(known_ids) if hot_ids is None else hot_ids[hot_ids < known_ids]
        self._model = _Continuation(model, proposable=proposable, slots=slots)

    def open(self, prompt: Sequence[int], origin: Origin = NOBODY) -> DraftSession:  # noqa: ARG002 - a contract
        """Start drafting after `prompt`; nothing is computed before the first proposal."""
        return _ModelSession(self, self._model, prompt)

    def learn(self, answer: Sequence[int], origin: Origin) -> None:
        """Nothing: the weights stay as they are."""

    def greedy(self, prompt: Sequence[int], answer: Sequence[int]) -> Sequence[int]:
        """The model's next token at every position of `answer`, from one forward over all of it.

        It shares nothing with the forwards of open sessions and so does not wait for them.
        """
        whole = [*prompt, *answer[:-1]][: self.context_length]
        if not prompt:
            # Nothing stands before the first token, which is the target's in any case.
            return [0, *self._model.guesses(whole, start=0)] if whole else [0]
        return self._model.guesses(whole, start=len(prompt) - 1)

    def room(self, length: int) -> int:
        """How many tokens fit after a context of `length`."""
        return max(0, self.context_length - length)

    def count_outgrown(self) -> None:
        """Count an answer that goes on beyond the model's context."""
        with self._counting:
            self.outgrown += 1


def check_draftable(config: Any) -> None:
    """Refuse a model whose layers, or whose context length, the slots cannot serve.

    Raises:
        StartError: Says which.
    """
    if unsuited := sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"}):
        raise StartError(
            f"this draft model has layers of kind {', '.join(unsuited)}; only full_attention can be drafted "
            "with. Choose another --draft-model."
        )
    if not hasattr(config, "max_position_embeddings"):
        raise StartError(
            "this draft model's config.json has no max_position_embeddings, so its context length is not "
            "known. Choose a --draft-model with ordinary attention."
        )


def usable_context(config: Any) -> int:
    """Most positions that are drafted at."""
    return min(int(config.max_position_embeddings), LONGEST_CONTEXT)


class _Sequence:
    """One answer's tokens, and which of them the slot it may have holds.

    Attributes:
        tokens: Prompt and answer so far.
        cached: Leading tokens whose keys and values are in its slot.
        ahead: Own proposals whose keys and values stand after those.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self.cached = 0
        self.ahead: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        """Append; what was proposed and is now emitted has been computed already."""
        for token in tokens:
            if self.ahead and self.ahead[0] == token:
                del self.ahead[0]
                self.cached += 1
            else:
                self.ahead.clear()
            self.tokens.append(token)


class _ModelSession:
    """Drafts for one answer, until the model's context is full or a forward fails."""

    def __init__(self, drafter: DraftModelDrafter, model: _Continuation, prompt: Sequence[int]) -> None:
        self._drafter = drafter
        self._model = model
        self._sequence = _Sequence(prompt)
        self._ended = False

    def propose(self, k: int) -> list[int]:
        length = len(self._sequence.tokens)
        room = self._drafter.room(length)
        if room == 0:
            self._outgrow()
        if self._ended or not length or k < 1:
            return []
        try:
            return self._model.greedy(self._sequence, min(k, room))
        except RuntimeError:  # torch's, out of memory included
            logger.exception("A forward of the draft model failed; this answer goes on without drafts")
            self._end()
            return []

    def extend(self, tokens: Sequence[int]) -> None:
        self._sequence.extend(tokens)

    def close(self) -> None:
        self._model.forget(self._sequence)

    def _outgrow(self) -> None:
        if not self._ended:
            self._drafter.count_outgrown()
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._model.forget(self._sequence)


class _Ask:
    """A proposal that somebody waits for."""

    def __init__(self, sequence: _Sequence, k: int) -> None:
        self.sequence = sequence
        self.k = k
        self.draft: list[int] = []
        self.error: Exception | None = None
        self.answered = False


class _Continuation:
    """Continues sequences greedily. Who asks while a forward runs is served by the next, with the others."""

    def __init__(self, model: Any, *, proposable: torch.Tensor, slots: int) -> None:
        self._body = model.base_model
        self._proposable = proposable.to(model.device)
        self._weight, self._bias = _rows(model.get_output_embeddings(), self._proposable)
        self._read_ids: int = model.get_input_embeddings().num_embeddings
        self._device = model.device
        self._dtype = model.dtype
        self._slot_count = slots
        self._cache = SlotCache(model.config.get_text_config().num_hidden_layers, slots)
        self._owners: OrderedDict[int, _Sequence | None] = OrderedDict.fromkeys(range(slots))
        self._running = threading.Lock()
        self._asking = threading.Lock()
        self._asks: list[_Ask] = []

    def greedy(self, sequence: _Sequence, k: int) -> list[int]:
        """Return the next `k` tokens. A sequence is asked for by one thread at a time.

        Raises:
            RuntimeError: A forward failed.
        """
        ask = _Ask(sequence, k)
        with self._asking:
            self._asks.append(ask)
        with self._running:
            while not ask.answered:
                self._answer(self._taken())
        if ask.error is not None:
            raise ask.error
        return ask.draft

    @torch.inference_mode()
    def guesses(self, tokens: Sequence[int], *, start: int) -> list[int]:
        """Return the model's next token after each token from `start` on; takes no slot."""
        hidden = self._body(input_ids=self._ids([tokens]), use_cache=False).last_hidden_state[0, start:]
        return [token for piece in hidden.split(_LOGITS_AT_ONCE) for token in self._likeliest(piece).tolist()]

    def forget(self, sequence: _Sequence) -> None:
        """Give the sequence's slot, if it has one, to whoever comes next."""
        with self._running:
            for slot, owner in self._owners.items():
                if owner is sequence:
                    self._owners[slot] = None
                    self._owners.move_to_end(slot, last=False)
                    break

    def _taken(self) -> list[_Ask]:
        with self._asking:
            taken, self._asks = self._asks[: self._slot_count], self._asks[self._slot_count :]
        return taken

    def _answer(self, asks: list[_Ask]) -> None:
        try:
            self._continue(asks)
        except Exception as error:  # noqa: BLE001 - raised to everybody who asked
            for ask in asks:
                ask.error = error
        for ask in asks:
            ask.answered = True

    @torch.inference_mode()
    def _continue(self, asks: list[_Ask]) -> None:
        """Draft for all of them in step; who wants fewer tokens leaves earlier."""
        slots = self._slots_of([ask.sequence for ask in asks])
        ordered = sorted(zip(slots, asks, strict=True), key=lambda pair: (-pair[1].k, pair[0]))
        slots, asks = [slot for slot, _ in ordered], [ask for _, ask in ordered]
        for slot, ask in ordered:
            self._catch_up(slot, ask.sequence)
        starts = [ask.sequence.cached for ask in asks]
        pieces = [ask.sequence.tokens[start:] for ask, start in zip(asks, starts, strict=True)]
        rounds = [self._next(slots, starts, [len(piece) for piece in pieces], self._ids(pieces))]
        for number in range(1, asks[0].k):
            count = sum(ask.k > number for ask in asks)
            places = [len(ask.sequence.tokens) + number - 1 for ask in asks[:count]]
            rounds.append(self._next(slots[:count], places, [1] * count, rounds[-1][:count, None]))
        tokens = [drafted.tolist() for drafted in rounds]
        for row, ask in enumerate(asks):
            ask.draft = [tokens[number][row] for number in range(ask.k)]
            ask.sequence.cached = len(ask.sequence.tokens)
            ask.sequence.ahead = ask.draft[:-1]

    def _slots_of(self, sequences: list[_Sequence]) -> list[int]:
        """Each sequence's slot, its own if it still has one; the longest unused are given away."""
        owned = {id(owner): slot for slot, owner in self._owners.items() if owner is not None}
        for sequence in sequences:
            if id(sequence) in owned:
                self._owners.move_to_end(owned[id(sequence)])
        slots = []
        for sequence in sequences:
            slot = owned.get(id(sequence))
            if slot is None:
                slot = next(iter(self._owners))
                self._owners[slot] = sequence
                self._owners.move_to_end(slot)
                sequence.cached = 0
            # What was proposed is forgotten; a forward needs a token, so the last one is fed anew.
            sequence.ahead.clear()
            sequence.cached = min(sequence.cached, len(sequence.tokens) - 1)
            slots.append(slot)
        return slots

    def _catch_up(self, slot: int, sequence: _Sequence) -> None:
        missing = sequence.tokens[sequence.cached : -1]
        if len(missing) > _ALONE:
            self._next([slot], [sequence.cached], [len(missing)], self._ids([missing]))
            sequence.cached += len(missing)

    def _next(
        self, slots: list[int], starts: list[int], counts: list[int], tokens: torch.Tensor
    ) -> torch.Tensor:
        """Feed `tokens` (shape: [rows, new]); return the likeliest after each row's last (shape: [rows])."""
        places = Places.after(slots, starts, counts, self._device)
        self._cache.continue_at(places)
        hidden = self._body(
            input_ids=tokens,
            attention_mask=places.mask(self._dtype),
            position_ids=places.positions,
            cache=self._cache,
            use_cache=True,
        ).last_hidden_state
        last = torch.tensor(counts, device=self._device) - 1
        return self._likeliest(hidden[torch.arange(len(slots), device=self._device), last])

    def _likeliest(self, hidden: torch.Tensor) -> torch.Tensor:
        scores = torch.nn.functional.linear(hidden, self._weight, self._bias)
        return self._proposable[scores.argmax(-1)]

    def _ids(self, pieces: Sequence[Sequence[int]]) -> torch.Tensor:
        """Rows padded with id 0, which also stands for ids that the model cannot read."""
        width = max(map(len, pieces))
        rows = [
            [token if 0 <= token < self._read_ids else 0 for token in piece] + [0] * (width - len(piece))
            for piece in pieces
        ]
        return torch.tensor(rows, device=self._device)


def _rows(layer: Any, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of an output layer for `ids` alone; no copy where they are its first ones."""
    in_order = torch.equal(ids, torch.arange(len(ids), device=ids.device))
    rows = slice(len(ids)) if in_order else ids
    bias = getattr(layer, "bias", None)
    return layer.weight.detach()[rows], None if bias is None else bias.detach()[rows]
