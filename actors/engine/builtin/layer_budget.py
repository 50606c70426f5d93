"""Which layers of a model stay in the memory of its device, and which are streamed from the host. Pure.

Owns the arithmetic: how many layers fit, which ones are streamed, and the memory of one pass. The copies are
in `layer_stream`.

Source: RollPacker, section 4.3: a judge beside the actor on one GPU, whose layers are mostly in host memory;
how many follows the length of the input.
"""

from dataclasses import dataclass

from gleaner.actors.model.qwen3_config import Qwen3Config

BUFFERS = 2
"""Layers of device memory for streamed ones: one computes while the next is copied."""
FLOAT_BYTES = 4
ALIGNED = 16
"""Elements at whose multiples the tensors of a layer begin: 64 bytes, as for one with its own memory."""


class DoesNotFit(ValueError):
    """Even with every layer in host memory a pass needs more memory than is reserved. `needed_bytes`: with so
    much it fits."""

    def __init__(self, reserve_bytes: int, needed_bytes: int) -> None:
        super().__init__(
            f"a pass needs {needed_bytes} bytes of memory with every layer streamed, {reserve_bytes} are "
            "reserved: reserve more, or allow fewer slots or shorter requests"
        )
        self.needed_bytes = needed_bytes


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model: layers, and the widths of its tensors."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


def sizes_of(config: Qwen3Config) -> Sizes:
    """The sizes of a model."""
    return Sizes(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocabulary=config.vocab_size,
    )


def require_fit(sizes: Sizes, slots: int, max_tokens: int, reserve_bytes: int) -> None:
    """A request of `max_tokens`, and a step of all slots, fit. Raises DoesNotFit."""
    fixed = fixed_bytes(sizes, slots, max_tokens)
    most = max(prefill_bytes(sizes, 1, max_tokens, slots), decode_bytes(sizes, slots, max_tokens))
    layers_offloaded(reserve_bytes, layer_bytes(sizes), sizes.layers, fixed + most)


def layers_offloaded(reserve_bytes: int, layer_bytes: int, layers: int, activation_bytes: int) -> int:
    """The fewest layers kept in host memory with which a pass fits: the resident layers, `BUFFERS` more if
    any is streamed, and the activations of this input. Raises DoesNotFit, ValueError."""
    if min(layer_bytes, layers) < 1 or activation_bytes < 0:
        raise ValueError(
            "layer_bytes and layers: expected at least 1, activation_bytes: at least 0, got "
            f"{layer_bytes}, {layers}, {activation_bytes}"
        )
    room = (reserve_bytes - activation_bytes) // layer_bytes
    if room >= layers:
        return 0
    if room < BUFFERS or layers <= BUFFERS:  # two layers or fewer fill the buffers: streaming saves nothing
        raise DoesNotFit(reserve_bytes, activation_bytes + min(BUFFERS, layers) * layer_bytes)
    return layers + BUFFERS - room


def streamed_first(layers: int) -> list[int]:
    """All layers, in the order in which they go to host memory. The first k are spread over the model for any
    k, so that resident layers compute while the next streamed one is copied; and another k moves only the
    difference."""
    bits = max(1, (layers - 1).bit_length())
    return sorted(range(layers), key=lambda layer: int(f"{layer:0{bits}b}"[::-1], 2))


def layer_bytes(sizes: Sizes) -> int:
    """Device memory of one packed layer."""
    mixed = sizes.heads * sizes.head_dim
    qkv = sizes.hidden * (mixed + 2 * sizes.kv_heads * sizes.head_dim)
    gains = (sizes.heads + sizes.kv_heads) * sizes.head_dim
    mlp = sizes.hidden * sizes.intermediate
    return FLOAT_BYTES * sum(map(aligned, (qkv, gains, mixed * sizes.hidden, 2 * mlp, mlp)))


def aligned(elements: int) -> int:
    """So many elements, and those up to the next part of a layer."""
    return -(-elements // ALIGNED) * ALIGNED


def fixed_bytes(sizes: Sizes, slots: int, max_tokens: int) -> int:
    """What is in device memory beside layers and activations: embedding, output matrix, cache, rotations."""
    cache = sizes.layers * slots * 2 * sizes.kv_heads * max_tokens * sizes.head_dim
    return FLOAT_BYTES * (2 * sizes.vocabulary * sizes.hidden + cache + max_tokens * sizes.head_dim)


def prefill_bytes(sizes: Sizes, contexts: int, length: int, copies: int) -> int:
    """A bound of the activations that fill the cache with so many different contexts, padded to this length.
    copies: slots that get them."""
    rows, d = contexts * length, sizes.head_dim
    attention = 2 * (sizes.heads + 2 * sizes.kv_heads) * d + 5 * sizes.heads * d
    cached = 2 * copies * length * sizes.kv_heads * d
    per_row = 3 * sizes.hidden + attention + 3 * sizes.intermediate + d + 8
    return FLOAT_BYTES * (rows * per_row + cached)


def decode_bytes(sizes: Sizes, rows: int, columns: int) -> int:
    """A bound of the activations of a step of so many sequences, a token of each, that reads `columns`
    positions of each."""
    d = sizes.head_dim
    attention = 2 * (sizes.heads + 2 * sizes.kv_heads) * (d + 2) + 2 * sizes.heads * (d + columns)
    addresses = 4 * (sizes.kv_heads * (d + 1) + columns)
    per_row = 3 * sizes.hidden + attention + addresses + 3 * sizes.intermediate + sizes.vocabulary + d + 16
    return FLOAT_BYTES * rows * per_row
