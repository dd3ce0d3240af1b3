"""Keys and values of several sequences side by side, so that one forward continues all of them.

Each sequence has a slot: a row of every layer's buffers. A forward names the slots that it continues and
how many tokens it adds to each; sequences may be of different lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_SMALLEST_CAPACITY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the tokens of one forward belong. A row is padded on the right.

    Attributes:
        slots: The slots continued. shape: [rows]
        rows: The same; a slice where they lie side by side, which reads them without a copy.
        positions: Position of each token in its sequence; 0 for padding. shape: [rows, new]
        real: Which tokens are no padding. shape: [rows, new]
        end: One more than the highest position.
    """

    slots: torch.Tensor
    rows: slice | torch.Tensor
    positions: torch.Tensor
    real: torch.Tensor
    end: int

    @classmethod
    def after(
        cls, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int], device: torch.device
    ) -> Places:
        """Lay out `counts[i]` tokens that continue the sequence in `slots[i]` at position `starts[i]`."""
        columns = torch.arange(max(counts), device=device)
        real = columns < torch.tensor(counts, device=device)[:, None]
        first, last = slots[0], slots[0] + len(slots)
        side_by_side = list(slots) == list(range(first, last))
        chosen = torch.tensor(slots, device=device)
        return cls(
            slots=chosen,
            rows=slice(first, last) if side_by_side else chosen,
            positions=(torch.tensor(starts, device=device)[:, None] + columns).where(real, 0),
            real=real,
            end=max(start + count for start, count in zip(starts, counts, strict=True)),
        )

    def mask(self, dtype: torch.dtype) -> torch.Tensor:
        """What to add to attention scores, so that a token sees the cached positions up to its own.

        shape: [rows, 1, new, end]
        """
        cached = torch.arange(self.end, device=self.positions.device)
        hidden = cached > self.positions[:, None, :, None]
        return hidden.to(dtype) * torch.finfo(dtype).min


class SlotCache(Cache):
    """The keys and values of all slots in every layer of a model."""

    def __init__(self, layer_count: int, slot_count: int) -> None:
        self._slot_layers = [_SlotLayer(slot_count) for _ in range(layer_count)]
        super().__init__(layers=list(self._slot_layers))

    def continue_at(self, places: Places) -> None:
        """Say where the next forward's tokens belong."""
        for layer in self._slot_layers:
            layer.places = places


class _SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no types
    """Keys and values of one layer, in buffers of shape [slots, heads, capacity + 1, head_dim].

    The last position takes what is computed for padding.
    """

    places: Places

    def __init__(self, slot_count: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._slot_count = slot_count
        self._key_buffer = torch.empty(0)
        self._value_buffer = torch.empty(0)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the first buffers, shaped like what is to be stored."""
        self._key_buffer = self._empty_like(key_states, _SMALLEST_CAPACITY)
        self._value_buffer = self._empty_like(value_states, _SMALLEST_CAPACITY)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store what the forward computed, and return everything that its tokens may see."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._make_room(self.places.end)
        return self._stored(self._key_buffer, key_states), self._stored(self._value_buffer, value_states)

    def get_seq_length(self) -> int:
        """Return 0: there is no one length, and the forward is told every position."""
        return 0

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1

    def get_mask_sizes(self, _: int) -> tuple[int, int]:
        """Return how many positions the next forward sees, and where they start."""
        return self.places.end, 0

    def _stored(self, buffer: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        places = self.places
        at = places.positions.where(places.real, buffer.shape[2] - 1)
        buffer[places.slots[:, None], :, at] = states.transpose(1, 2)
        return buffer[places.rows, :, : places.end]

    def _make_room(self, length: int) -> None:
        capacity = self._key_buffer.shape[2] - 1
        if length > capacity:
            larger = max(length, 2 * capacity)
            self._key_buffer = self._grown(self._key_buffer, larger)
            self._value_buffer = self._grown(self._value_buffer, larger)

    def _grown(self, buffer: torch.Tensor, capacity: int) -> torch.Tensor:
        grown = self._empty_like(buffer, capacity)
        grown[:, :, : buffer.shape[2]] = buffer
        return grown

    def _empty_like(self, states: torch.Tensor, capacity: int) -> torch.Tensor:
        # Zeros, not garbage: what a mask hides must still be a number.
        return states.new_zeros((self._slot_count, states.shape[1], capacity + 1, states.shape[3]))
