"""A KV cache that grows in place and is cut in O(1).

transformers' own `DynamicCache` copies every key and value at each token; here they are written
into buffers with room to spare, and cutting moves one number per layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_SMALLEST_CAPACITY = 128


class GrowingLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no types
    """Keys and values of one attention layer: two buffers, filled up to a length.

    Both have shape [batch, heads, capacity, head_dim].
    """

    is_croppable = True
    is_sliding = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._length = 0
        self._key_buffer = torch.empty(0)
        self._value_buffer = torch.empty(0)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the first buffers, shaped like what is to be stored."""
        self._key_buffer = _resized(key_states, 0, _SMALLEST_CAPACITY)
        self._value_buffer = _resized(value_states, 0, _SMALLEST_CAPACITY)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the new positions and return everything up to them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        begin, end = self._length, self._length + key_states.shape[-2]
        self._make_room(end)
        self._key_buffer[..., begin:end, :] = key_states
        self._value_buffer[..., begin:end, :] = value_states
        self._length = end
        return self._key_buffer[..., :end, :], self._value_buffer[..., :end, :]

    def get_seq_length(self) -> int:
        """Return the number of positions held."""
        return self._length

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many positions the next forward sees, and where they start."""
        return self._length + query_length, 0

    def cut(self, length: int) -> None:
        """Forget the positions from `length` on. Their memory is reused, not returned."""
        self._length = min(self._length, length)

    def fork(self, length: int, capacity: int) -> GrowingLayer:
        """Copy the first `length` positions into a layer of its own, with room for `capacity`."""
        copy = GrowingLayer()
        copy._key_buffer = _resized(self._key_buffer, length, capacity)
        copy._value_buffer = _resized(self._value_buffer, length, capacity)
        copy._length = length
        copy.is_initialized = True
        return copy

    def _make_room(self, length: int) -> None:
        capacity = self._key_buffer.shape[-2]
        if length > capacity:
            self._key_buffer = _resized(self._key_buffer, self._length, max(length, 2 * capacity))
            self._value_buffer = _resized(self._value_buffer, self._length, max(length, 2 * capacity))


class KvCache(Cache):
    """The keys and values of one sequence in every layer of a model."""

    def __init__(self, layers: Sequence[GrowingLayer]) -> None:
        super().__init__(layers=list(layers))
        self._growing = tuple(layers)

    @classmethod
    def empty(cls, layer_count: int) -> KvCache:
        """Return a cache that holds nothing yet."""
        return cls([GrowingLayer() for _ in range(layer_count)])

    @property
    def length(self) -> int:
        """Number of positions held."""
        return self._growing[0].get_seq_length()

    def cut(self, length: int) -> None:
        """Forget the positions from `length` on, in O(1)."""
        for layer in self._growing:
            layer.cut(length)

    def fork(self, length: int, capacity: int) -> KvCache:
        """Copy the first `length` positions, with room for `capacity`; the two share no memory afterwards."""
        return KvCache([layer.fork(length, capacity) for layer in self._growing])


def _resized(states: torch.Tensor, keep: int, capacity: int) -> torch.Tensor:
    """A buffer for `capacity` positions that starts with the first `keep` of `states`."""
    *outer, _, head_dim = states.shape
    buffer = states.new_empty((*outer, capacity, head_dim))
    buffer[..., :keep, :] = states[..., :keep, :]
    return buffer
