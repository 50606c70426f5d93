"""Layers streamed from host memory: the bits of the resident model, in bounded memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gleaner.actors.engine.builtin import layer_stream
from gleaner.actors.engine.builtin.decoder import Decoder
from gleaner.actors.engine.builtin.layer_budget import (
    BUFFERS,
    DoesNotFit,
    decode_bytes,
    fixed_bytes,
    layer_bytes,
    prefill_bytes,
    sizes_of,
)
from gleaner.actors.engine.builtin.layer_stream import Arrived, StreamedLayers, ThreadCopies
from gleaner.actors.engine.builtin.packed_weights import PackedLayer, pack
from gleaner.actors.engine.builtin.streamed_decoder import StreamedDecoder
from gleaner.actors.model.qwen3 import Qwen3, Qwen3Config

MakeModel = Callable[..., Qwen3]

LAYERS, SLOTS, LONGEST = 7, 3, 64
CONFIG = Qwen3Config(
    vocab_size=96,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=LAYERS,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    rope_theta=1e4,
    tie_word_embeddings=True,
    initializer_range=0.15,
)
SIZES = sizes_of(CONFIG)
ONE = layer_bytes(SIZES)
CONTEXTS = [[5, 9, 31, 2], [7] * 19, [7] * 19]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> Qwen3:
    return make_model(3, CONFIG)


def reserve_bytes(layers: int, activations: int | None = None) -> int:
    """Memory for so many layers, buffers included, beside the largest pass."""
    if activations is None:
        activations = max(prefill_bytes(SIZES, 1, LONGEST, SLOTS), decode_bytes(SIZES, SLOTS, LONGEST))
    return fixed_bytes(SIZES, SLOTS, LONGEST) + activations + layers * ONE


def run(decoder: Decoder, steps: int = 6) -> list[Tensor]:
    """Logits of a prefill and some steps, and the caches."""
    decoder.prefill(CONTEXTS, 0)
    tokens, at = torch.tensor([3, 4, 6]), torch.tensor([len(one) for one in CONTEXTS])
    found = []
    for _ in range(steps):
        logits = decoder.decode(tokens, at, int(at.max()) + 1)
        found.append(logits)
        tokens, at = logits.argmax(-1), at + 1
    return [*found, decoder._keys, decoder._values]


def alike(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(
        torch.equal(one.view(torch.int32), other.view(torch.int32))
        for one, other in zip(some, others, strict=True)
    )


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, LAYERS])
def test_pass_has_every_layer_in_order_and_bounded_memory(model: Qwen3, count: int) -> None:
    packed = list(pack(model).layers)
    layers = StreamedLayers(packed, CPU)
    layers.stream(count)
    memory = set()
    for _ in range(3):
        for one, layer in zip(packed, layers, strict=True):
            assert alike(list(vars(one).values()), list(vars(layer).values()))
            memory.add(layer.qkv.data_ptr())
            assert layers.held <= LAYERS - count + min(BUFFERS, count)
    assert len(memory) == layers.held == LAYERS - count + min(BUFFERS, count)
    assert layers.layer_bytes == ONE


class _Recorded(ThreadCopies):
    """Copies at once, and records which layer is begun and which one is waited for."""

    def __init__(self, layers: Sequence[PackedLayer]) -> None:
        self.events: list[tuple[str, int]] = []
        self._first = [float(layer.qkv.flatten()[0]) for layer in layers]

    def begin(self, target: Tensor, source: Tensor) -> Arrived:
        layer = self._first.index(float(source[0]))
        self.events.append(("begun", layer))
        target.copy_(source)
        return lambda: self.events.append(("arrived", layer))


def test_next_layer_is_on_the_way_while_one_computes(model: Qwen3, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = list(pack(model).layers)
    recorded = _Recorded(packed)
    monkeypatch.setattr(layer_stream, "copies_to", lambda device: recorded)
    layers = StreamedLayers(packed, CPU)
    for _ in range(2):
        recorded.events.clear()
        for at, _ in enumerate(layers):
            begun = [layer for event, layer in recorded.events if event == "begun"]
            assert begun == list(range(min(at + BUFFERS, LAYERS))), "the next one, and none beyond it"
            assert ("arrived", at) in recorded.events
            assert ("arrived", at + 1) not in recorded.events, "the pass does not wait for it yet"


@pytest.mark.parametrize("room", [2, 3, 5, LAYERS - 1, LAYERS])
def test_streamed_decoding_equals_resident_bit_for_bit(model: Qwen3, room: int) -> None:
    resident = run(Decoder(model, SLOTS, LONGEST))
    streamed = StreamedDecoder(model, SLOTS, LONGEST, reserve_bytes(room))
    assert alike(run(streamed), resident)
    assert streamed.stream.held <= LAYERS


def test_other_input_lengths_stream_other_numbers_of_layers(model: Qwen3) -> None:
    decoder = StreamedDecoder(model, SLOTS, LONGEST, reserve_bytes(2))
    held = []
    for length in (2, LONGEST - 1, 2, LONGEST - 1):
        decoder.prefill([[1 + at % 90 for at in range(length)]], 0)
        held.append(decoder.stream.held)
    assert held[0] > held[1] == BUFFERS, "short inputs leave memory for resident layers"
    assert held[2:] == held[:2]
    resident = Decoder(model, SLOTS, LONGEST)
    assert alike(run(decoder), [*run(resident)[:-2], decoder._keys, decoder._values])


def test_prefill_that_does_not_fit_in_one_batch_is_divided(model: Qwen3) -> None:
    one = prefill_bytes(SIZES, 1, LONGEST, SLOTS)
    assert prefill_bytes(SIZES, SLOTS, LONGEST - 1, SLOTS) > one + ONE
    decoder = StreamedDecoder(model, SLOTS, LONGEST, reserve_bytes(2))
    alone = Decoder(model, SLOTS, LONGEST)
    contexts = [[slot + 1] * (LONGEST - 1) for slot in range(SLOTS)]
    decoder.prefill(contexts, 0)
    for slot, context in enumerate(contexts):
        alone.prefill([context], slot)
    assert alike([decoder._keys, decoder._values], [alone._keys, alone._values])


def test_too_small_reserve_is_refused_with_what_is_enough(model: Qwen3) -> None:
    with pytest.raises(DoesNotFit, match="reserve more, or allow fewer slots") as refused:
        StreamedDecoder(model, SLOTS, LONGEST, reserve_bytes(2) - 1)
    assert refused.value.needed_bytes == reserve_bytes(2)


def test_new_weights_are_streamed_from_then_on(model: Qwen3, make_model: MakeModel) -> None:
    other = make_model(4, CONFIG)
    decoder = StreamedDecoder(model, SLOTS, LONGEST, reserve_bytes(3))
    before = run(decoder)[:-2]
    assert decoder.take(pack(other)) is None
    after = run(decoder)
    assert alike(after, run(Decoder(other, SLOTS, LONGEST)))
    assert not alike(before, after[:-2])


def test_pass_that_was_given_up_leaves_the_next_one_whole(model: Qwen3) -> None:
    packed = list(pack(model).layers)
    layers = StreamedLayers(packed, CPU)
    layers.stream(LAYERS - 2)
    for stop in range(LAYERS):
        for at, _ in enumerate(layers):
            if at == stop:
                break
        for one, layer in zip(packed, layers, strict=True):
            assert alike(list(vars(one).values()), list(vars(layer).values()))
        layers.stream(LAYERS - stop % 3)


class _Allocations(TorchDispatchMode):
    """Bytes of tensors that operations made and that are still there, and the most of them."""

    def __init__(self) -> None:
        super().__init__()
        self.now_bytes = self.most_bytes = 0
        self._known: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; an import of torch's compiler would take seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {one.untyped_storage()._cdata for one in _tensors((args, kwargs))}
        for one in _tensors(made):
            storage = one.untyped_storage()
            if storage._cdata not in self._known | given:
                self._known.add(storage._cdata)
                self.now_bytes += storage.nbytes()
                self.most_bytes = max(self.most_bytes, self.now_bytes)
                weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())
        return made

    def _freed(self, which: int, size: int) -> None:
        self._known.discard(which)
        self.now_bytes -= size


def _tensors(found: Any) -> Iterator[Tensor]:
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, list | tuple):
        for one in found:
            yield from _tensors(one)
    elif isinstance(found, dict):
        yield from _tensors(list(found.values()))


@contextmanager
def most_bytes(found: list[int]) -> Iterator[None]:
    with _Allocations() as counted:
        yield
    found.append(counted.most_bytes)


@pytest.mark.parametrize("wide", [False, True])
def test_activations_stay_below_the_bound(make_model: MakeModel, wide: bool) -> None:
    config = replace(CONFIG, vocab_size=500, intermediate_size=32) if wide else CONFIG
    sizes, longest = sizes_of(config), 256
    decoder = Decoder(make_model(1, config), 4, longest)
    for length in (1, 17, 200):
        found: list[int] = []
        with most_bytes(found):
            decoder.prefill([[slot + 1] * length for slot in range(4)], 0)
        bound = prefill_bytes(sizes, 4, length, 4)
        assert bound / 4 < found[0] <= bound
        with most_bytes(found):
            decoder.decode(torch.ones(4, dtype=torch.int64), torch.full((4,), length), length + 1)
        columns = min(-(-(length + 1) // 16) * 16, longest)
        assert decode_bytes(sizes, 4, columns) / 4 < found[1] <= decode_bytes(sizes, 4, columns)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_streams_layers_as_it_computes_with_resident_ones(model: Qwen3) -> None:
    device = torch.device("cuda")
    resident = run(StreamedDecoder(model, SLOTS, LONGEST, reserve_bytes(4 * LAYERS), device))
    for room in (2, 4, LAYERS):
        decoder = StreamedDecoder(model, SLOTS, LONGEST, reserve_bytes(room), device)
        assert alike(run(decoder), resident)
