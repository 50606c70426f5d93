"""Parts of checkpoint tensors that a Megatron rank holds in its fused tensors.

Owns the map from Megatron-core's GPT layers to rows and columns of a Hugging Face checkpoint. Pure.

As Megatron-core lays them out (core/transformer/attention.py, mlp.py, tensor_parallel/layers.py):
`linear_qkv` holds for each group of the rank its query heads, its key head, its value head; `linear_fc1` the
rank's part of the gate, then that of the up projection; `linear_proj` and `linear_fc2` are cut by columns;
embedding and head by rows of a padded vocabulary. Tensors that all ranks of a kind hold (norms, routers,
biases behind a sum) are published by the first one. Expert-parallel ranks hold the same dense layers; the
first rank publishes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.shards.layout import (
    LayoutError,
    Part,
    RankLayers,
    columns_in,
    is_embedding,
    is_head,
    place_of,
    rows_in,
)

VOCABULARY_MULTIPLE = 128  # times the tensor-parallel size: Megatron's --make-vocab-size-divisible-by

_QKV = re.compile(r"self_attn\.([qkv])_proj\.(weight|bias)$")
_OUT = re.compile(r"self_attn\.o_proj\.weight$")
_UP = re.compile(r"mlp\.(.*?)(gate|up)_proj\.(weight|bias)$")
_DOWN = re.compile(r"mlp\.(.*?)down_proj\.weight$")


@dataclass(frozen=True, slots=True)
class Heads:
    """Of attention: query heads, key and value heads (groups), elements of one."""

    queries: int
    groups: int
    elements: int


@dataclass(frozen=True, slots=True)
class TensorRank:
    """The index of a tensor-parallel rank and their number. `dense`: whether it publishes the tensors that
    all expert-parallel ranks hold (true for the first of them). vocabulary_multiple: see
    `VOCABULARY_MULTIPLE`."""

    index: int
    count: int
    dense: bool = True
    vocabulary_multiple: int = VOCABULARY_MULTIPLE


def megatron_parts(
    tensors: Sequence[TensorSpec], heads: Heads, held: RankLayers, rank: TensorRank
) -> tuple[Part, ...]:
    """The parts of the image that this rank publishes. `held`: the layers of its pipeline stage, the experts
    of its expert-parallel rank. Raises LayoutError if the model cannot be cut like that."""
    found: list[Part] = []
    for spec in tensors:
        place = place_of(spec.name)
        if place.stacked:
            raise LayoutError(f"{spec.name}: stacked experts are not what Megatron holds; name each")
        if place.layer is None:
            here = held.first if is_embedding(spec.name) else held.last
        else:
            here = place.layer in held.layers
        here = here and (place.expert in held.experts if place.expert is not None else rank.dense)
        if here:
            found += _parts(spec, place.rest, heads, rank)
    return tuple(found)


def _parts(spec: TensorSpec, rest: str, heads: Heads, rank: TensorRank) -> Iterator[Part]:
    prefix = spec.name[: len(spec.name) - len(rest)]
    if is_embedding(spec.name) or is_head(spec.name):
        yield from _vocabulary(spec, rank)
    elif found := _QKV.search(rest):
        yield from _qkv(spec, found[1], f"{prefix}self_attention.linear_qkv.{found[2]}", heads, rank)
    elif found := _UP.search(rest):
        run = _share(spec, rows_in(spec), rank)
        at = 0 if found[2] == "gate" else run
        local = f"{prefix}mlp.{found[1]}linear_fc1.{found[3]}"
        yield Part(spec.name, rank.index * run, (rank.index + 1) * run, local=local, at=at)
    elif _OUT.search(rest) or _DOWN.search(rest):
        run = _share(spec, columns_in(spec), rank)
        yield Part(spec.name, 0, rows_in(spec), rank.index * run, (rank.index + 1) * run)
    elif rank.index == 0:
        yield Part(spec.name, 0, rows_in(spec))


def _qkv(spec: TensorSpec, which: str, local: str, heads: Heads, rank: TensorRank) -> Iterator[Part]:
    if heads.queries % heads.groups or heads.groups % rank.count:
        raise LayoutError(f"{heads} cannot be cut into {rank.count} tensor-parallel ranks")
    per_group = heads.queries // heads.groups
    groups = heads.groups // rank.count
    before = {"q": 0, "k": per_group, "v": per_group + 1}[which]
    rows = (per_group if which == "q" else 1) * heads.elements
    if rows * heads.groups != rows_in(spec):
        raise LayoutError(f"{spec.name} has {rows_in(spec)} rows, not those of {heads}")
    for number in range(groups):
        group = rank.index * groups + number
        at = (number * (per_group + 2) + before) * heads.elements
        yield Part(spec.name, group * rows, (group + 1) * rows, local=local, at=at)


def _vocabulary(spec: TensorSpec, rank: TensorRank) -> Iterator[Part]:
    rows, multiple = rows_in(spec), rank.vocabulary_multiple * rank.count
    run = -(-rows // multiple) * multiple // rank.count
    low, high = min(rank.index * run, rows), min((rank.index + 1) * run, rows)
    if low < high:
        yield Part(spec.name, low, high)


def _share(spec: TensorSpec, count: int, rank: TensorRank) -> int:
    if count % rank.count:
        raise LayoutError(f"{spec.name}: {count} cannot be cut into {rank.count} tensor-parallel ranks")
    return count // rank.count
