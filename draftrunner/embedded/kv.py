"""A KV cache that grows in place and is cut in O(1).

transformers' own `DynamicCache` copies every key and value at each token; here they are written
into buffers with room to spare, and cutting moves one number per layer.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_SMALLEST_CAPACITY = 128


class GrowingLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not annotated
    """Keys and values of one attention layer, shape [batch, heads, capacity, head_dim], filled up to a length."""

    is_croppable = True
    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self._length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the first buffers, shaped like what is to be stored."""
        self.keys = _resized(key_states, 0, _SMALLEST_CAPACITY)
        self.values = _resized(value_states, 0, _SMALLEST_CAPACITY)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the new positions and return everything up to them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self._length + key_states.shape[-2]
        self._make_room(end)
        self.keys[..., self._length : end, :] = key_states
        self.values[..., self._length : end, :] = value_states
        self._length = end
        return self.keys[..., :end, :], self.values[..., :end, :]

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
        copy.keys = _resized(self.keys, length, capacity)
        copy.values = _resized(self.values, length, capacity)
        copy.is_initialized = True
        copy._length = length
        return copy

    def _make_room(self, length: int) -> None:
        capacity = self.keys.shape[-2]
        if length > capacity:
            self.keys = _resized(self.keys, self._length, max(length, 2 * capacity))
            self.values = _resized(self.values, self._length, max(length, 2 * capacity))


class KvCache(Cache):  # type: ignore[misc]  # transformers is not annotated
    """The keys and values of one sequence in every layer of a model."""

    def __init__(self, layers: list[GrowingLayer]) -> None:
        super().__init__(layers=layers)

    @classmethod
    def empty(cls, layer_count: int) -> KvCache:
        """Return a cache that holds nothing yet."""
        return cls([GrowingLayer() for _ in range(layer_count)])

    @property
    def length(self) -> int:
        """Number of positions held."""
        return self.layers[0].get_seq_length()

    def cut(self, length: int) -> None:
        """Forget the positions from `length` on, in O(1)."""
        for layer in self.layers:
            layer.cut(length)

    def fork(self, length: int, capacity: int) -> KvCache:
        """Copy the first `length` positions, with room for `capacity`; the two share no memory afterwards."""
        return KvCache([layer.fork(length, capacity) for layer in self.layers])


def _resized(states: torch.Tensor, keep: int, capacity: int) -> torch.Tensor:
    """A buffer for `capacity` positions that starts with the first `keep` of `states`."""
    *outer, _, head_dim = states.shape
    buffer = states.new_empty((*outer, capacity, head_dim))
    buffer[..., :keep, :] = states[..., :keep, :]
    return buffer
