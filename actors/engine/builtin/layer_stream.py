"""`StreamedLayers`: layers of a model that are in host memory, some of them in the device's too.

A pass gets them one after the other. The next one that is only in host memory is copied into one of two
buffers while the pass computes with the one before it. Owns the buffers, the resident layers, and the order
of the copies. How many layers are streamed is decided by `layer_budget`.

Invariant: device memory never has more than the planned resident layers and `BUFFERS` buffers.

One pass at a time. Adapter: torch; on CUDA a stream of its own, else a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from gleaner.actors.engine.builtin.layer_budget import BUFFERS, aligned, streamed_first
from gleaner.actors.engine.builtin.packed_weights import PackedLayer

PARTS = [field.name for field in fields(PackedLayer)]

Arrived = Callable[[], object]
"""Wait until a copy is complete, before what computes next."""


class Copies(Protocol):
    """Copies beside the computation."""

    def pinned(self, made: Tensor) -> Tensor:
        """Host memory that copies are made from."""

    def begin(self, target: Tensor, source: Tensor) -> Arrived:
        """Begin to copy, as soon as what was begun before no longer uses the target."""


class ThreadCopies:
    """`Copies` of a host that computes with its own memory: by one thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "layer-copies")

    def pinned(self, made: Tensor) -> Tensor:
        """See `Copies`."""
        return made

    def begin(self, target: Tensor, source: Tensor) -> Arrived:
        """See `Copies`. What was begun before has ended: the caller computes by itself."""
        copying: Future[None] = self._pool.submit(_copy, target, source)
        return copying.result


class CudaCopies:
    """`Copies` of a GPU: on a stream of its own, ordered with the computing one by events."""

    def __init__(self) -> None:
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def pinned(self, made: Tensor) -> Tensor:
        """See `Copies`."""
        return made.pin_memory()

    def begin(self, target: Tensor, source: Tensor) -> Arrived:
        """See `Copies`."""
        computing = torch.cuda.current_stream()
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._side.wait_stream(computing)
        with torch.cuda.stream(self._side):
            target.copy_(source, non_blocking=True)
            done.record(self._side)
        return lambda: torch.cuda.current_stream().wait_event(done)


def copies_to(device: torch.device) -> Copies:
    """The `Copies` for a device."""
    return CudaCopies() if device.type == "cuda" else ThreadCopies()


class StreamedLayers:
    """The layers of a `Packed`; iterating over them is one pass.

    Args:
        layers: of one shape; their memory is not used afterwards.
        device: where passes compute.
    """

    def __init__(self, layers: Sequence[PackedLayer], device: torch.device) -> None:
        self._copies = copies_to(device)
        self._shapes: list[torch.Size] = [getattr(layers[0], name).shape for name in PARTS]
        ends = accumulate(aligned(shape.numel()) for shape in self._shapes)
        self._starts = [0, *ends]
        self._device = device
        self._host = [self._copies.pinned(self._flat(layer)) for layer in layers]
        self._resident: dict[int, Tensor] = {}
        self._buffers: list[Tensor] = []
        self._order = streamed_first(len(layers))
        self._streamed = frozenset(self._order)
        self.stream(len(layers))

    def __len__(self) -> int:
        return len(self._host)

    @property
    def layer_bytes(self) -> int:
        """Memory of one layer, resident or in a buffer."""
        return self._starts[-1] * self._host[0].element_size()

    @property
    def held(self) -> int:
        """Layers of device memory in use: resident ones and buffers."""
        return len(self._resident) + len(self._buffers)

    def stream(self, count: int) -> None:
        """Stream so many layers from now on. Memory of others is freed now, and filled by the next pass."""
        self._streamed = frozenset(self._order[:count])
        for layer in self._streamed & self._resident.keys():
            del self._resident[layer]
        wanted = BUFFERS if count else 0
        self._buffers = self._buffers[:wanted]

    def __iter__(self) -> Iterator[PackedLayer]:
        """One pass: use a layer until the next one is taken, and no longer."""
        while len(self._buffers) < min(BUFFERS, len(self._streamed)):
            self._buffers.append(self._empty())
        free = list(self._buffers)
        absent = [layer for layer in range(len(self)) if layer not in self._resident]
        on_the_way: dict[int, tuple[Tensor, Arrived]] = {}

        def begin() -> None:
            """Begin the next copies: one for each free buffer, and no more ahead of the pass."""
            while absent and len(on_the_way) < BUFFERS:
                if absent[0] not in self._streamed:
                    target = self._resident[absent[0]] = self._empty()
                elif free:
                    target = free.pop()
                else:
                    return
                layer = absent.pop(0)
                on_the_way[layer] = target, self._copies.begin(target, self._host[layer])

        try:
            for layer in range(len(self)):
                begin()
                if layer in on_the_way:
                    flat, arrived = on_the_way.pop(layer)
                    arrived()
                else:
                    flat = self._resident[layer]
                begin()
                yield self._view(flat)
                if layer in self._streamed:
                    free.append(flat)
        finally:
            for layer, (_, arrived) in on_the_way.items():  # a pass that was given up
                arrived()
                self._resident.pop(layer, None)

    def _flat(self, layer: PackedLayer) -> Tensor:
        flat = torch.zeros(self._starts[-1])
        for start, name in zip(self._starts, PARTS, strict=False):
            part: Tensor = getattr(layer, name)
            flat[start : start + part.numel()] = part.reshape(-1)
        return flat

    def _empty(self) -> Tensor:
        return torch.empty(self._starts[-1], device=self._device)

    def _view(self, flat: Tensor) -> PackedLayer:
        parts = {
            name: flat[start : start + shape.numel()].view(shape)
            for name, start, shape in zip(PARTS, self._starts, self._shapes, strict=False)
        }
        return PackedLayer(**parts)


@torch.inference_mode()
def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)
