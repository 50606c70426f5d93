"""`StreamedDecoder`: decoding within a limit of device memory, with layers streamed from the host.

Owns the plan of each pass: before it begins, as many layers are left out of device memory as its activations
require. The bits are `decoder`'s for the same batches; a prefill that would not fit in one batch is divided.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gleaner.actors.engine.builtin.decoder import COLUMN_STEP, Decoder
from gleaner.actors.engine.builtin.layer_budget import (
    DoesNotFit,
    decode_bytes,
    fixed_bytes,
    layer_bytes,
    layers_offloaded,
    prefill_bytes,
    require_fit,
    sizes_of,
)
from gleaner.actors.engine.builtin.layer_stream import StreamedLayers
from gleaner.actors.engine.builtin.packed_weights import Packed
from gleaner.actors.model.qwen3 import Qwen3


class StreamedDecoder(Decoder):
    """A `Decoder` whose weights, cache and activations have `reserve_bytes` of device memory together."""

    _stream: StreamedLayers

    def __init__(
        self,
        model: Qwen3,
        slots: int,
        max_tokens: int,
        reserve_bytes: int,
        device: torch.device | None = None,
    ) -> None:
        """Raises DoesNotFit: a request of `max_tokens`, or a step of all slots, would not fit."""
        self._sizes = sizes_of(model.config)
        self._reserve_bytes, self._fixed_bytes = reserve_bytes, fixed_bytes(self._sizes, slots, max_tokens)
        self._longest = max_tokens
        require_fit(self._sizes, slots, max_tokens, reserve_bytes)
        super().__init__(model, slots, max_tokens, device)

    @property
    def stream(self) -> StreamedLayers:
        """The layers."""
        return self._stream

    def take(self, packed: Packed) -> None:
        """As `Decoder.take`. The old weights leave device memory before the new ones enter it, so none is
        returned."""
        device = self._device
        if self._packed is not None:
            del self._stream, self._layers, self._embedding, self._head
            self._packed = None
        self._stream = StreamedLayers(list(packed.layers), device)
        embedding, head = packed.embedding.to(device), packed.head.to(device)
        super().take(Packed(embedding=embedding, layers=self._stream, head=head))

    def prefill(self, contexts: Sequence[Sequence[int]], first_slot: int) -> None:
        """As `Decoder.prefill`."""
        different = len(set(map(tuple, contexts)))
        try:
            self._plan(prefill_bytes(self._sizes, different, max(map(len, contexts)), len(contexts)))
        except DoesNotFit:
            if len(contexts) == 1:
                raise
            half = len(contexts) // 2
            self.prefill(contexts[:half], first_slot)
            self.prefill(contexts[half:], first_slot + half)
        else:
            super().prefill(contexts, first_slot)

    def decode(self, tokens: Tensor, positions: Tensor, longest: int, first: int = 0) -> Tensor:
        """As `Decoder.decode`."""
        columns = min(-(-longest // COLUMN_STEP) * COLUMN_STEP, self._longest)
        self._plan(decode_bytes(self._sizes, len(tokens), columns))
        return super().decode(tokens, positions, longest, first)

    def _plan(self, activation_bytes: int) -> None:
        """Stream as few layers as the next pass allows. Raises DoesNotFit."""
        self._stream.stream(self._offloaded(activation_bytes))

    def _offloaded(self, activation_bytes: int) -> int:
        return layers_offloaded(
            self._reserve_bytes,
            layer_bytes(self._sizes),
            self._sizes.layers,
            self._fixed_bytes + activation_bytes,
        )
