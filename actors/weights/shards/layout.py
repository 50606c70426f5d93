"""`Part`: rows of checkpoint tensors that a process holds, as image bytes.

Owns the cut of dimension 0 (FSDP2) and the parts that an inference engine of a pipeline stage and expert rank
loads; `megatron_layout` has Megatron's. The image is that of the Hugging Face checkpoint. A trainer may fuse
or split tensors, but its parts are named by rows (and columns) of the checkpoint's tensors. Pure.

Tensor-parallel engines load whole tensors from the one image of their host and slice them there. So a host
needs only whole tensors and ranges of rows, which are long runs of bytes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from gleaner.actors.model.byte_ranges import MAX_RUNS, Run, joined
from gleaner.actors.model.tensor_spec import TensorSpec

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)$")
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_STACKED = re.compile(r"\.experts\.(?:gate_up_proj|down_proj)(?:_bias|_scales|_blocks)?$")
_EMBEDDING = re.compile(r"(?:^|\.)embed_tokens\.weight$")
_HEAD = re.compile(r"(?:^|\.)lm_head\.(?:weight|bias)$")


class LayoutError(ValueError):
    """The model cannot be cut as requested, or a part is not one of its tensors."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows `low` to `high` (not included) of `tensor`, of each the elements `left` to `right` of the
    dimensions after 0; right 0: all. They are the rows of the process's own tensor `local` from `at` on; "":
    it has the same name and begins with them."""

    tensor: str
    low: int
    high: int
    left: int = 0
    right: int = 0
    local: str = ""
    at: int = 0


@dataclass(frozen=True, slots=True)
class RankLayers:
    """The part of a model that belongs to one process: the layers of its pipeline stage, and its experts.
    `first`, `last`: whether the embedding, and the modules after the layers, belong to it."""

    layers: range
    experts: range
    first: bool
    last: bool


@dataclass(frozen=True, slots=True)
class TensorPosition:
    """The position of a tensor in a model. layer: None outside of the layers; expert: None for a tensor of no
    expert; `stacked`: dimension 0 counts experts."""

    layer: int | None
    rest: str
    expert: int | None
    stacked: bool


def place_of(name: str) -> TensorPosition:
    """The place of a tensor, by its Hugging Face name."""
    layer, expert = _LAYER.search(name), _EXPERT.search(name)
    return TensorPosition(
        int(layer[1]) if layer else None,
        layer[2] if layer else name,
        int(expert[1]) if expert else None,
        bool(_STACKED.search(name)),
    )


def is_embedding(name: str) -> bool:
    """Whether its rows are input tokens."""
    return bool(_EMBEDDING.search(name))


def is_head(name: str) -> bool:
    """Whether its rows are output tokens."""
    return bool(_HEAD.search(name))


def even(count: int, index: int, parts: int) -> range:
    """The part `index` of `count` layers or experts. Raises LayoutError if they do not divide evenly."""
    if count % parts or not 0 <= index < parts:
        raise LayoutError(
            f"{count} layers or experts cannot be cut into {parts} equal parts, of them {index}"
        )
    run = count // parts
    return range(index * run, (index + 1) * run)


def fsdp_parts(tensors: Sequence[TensorSpec], rank: int, ranks: int) -> tuple[Part, ...]:
    """The parts that FSDP2 (`Shard(0)`) leaves with a rank: equal runs of rows, the last ones shorter or
    empty (`torch.chunk`). A tensor without dimensions belongs to the first rank."""
    found = []
    for spec in tensors:
        rows = rows_in(spec)
        run = -(-rows // ranks)
        low, high = min(rank * run, rows), min((rank + 1) * run, rows)
        if low < high:
            found.append(Part(spec.name, low, high))
    return tuple(found)


def engine_parts(tensors: Sequence[TensorSpec], held: RankLayers) -> tuple[Part, ...]:
    """The parts that an engine with these layers and experts needs: whole tensors, and rows of tensors that
    stack all experts. If the head is tied to the embedding, the last stage needs the embedding."""
    tied = not any(is_head(spec.name) for spec in tensors)
    found = []
    for spec in tensors:
        place, low, high = place_of(spec.name), 0, rows_in(spec)
        if is_embedding(spec.name):
            here = held.first or (held.last and tied)
        elif place.layer is None:
            here = held.last
        else:
            here = place.layer in held.layers and (place.expert is None or place.expert in held.experts)
        if place.stacked:
            low, high = held.experts.start, min(held.experts.stop, high)
        if here and low < high:
            found.append(Part(spec.name, low, high))
    return tuple(found)


def runs_of(parts: Iterable[Part], tensors: Sequence[TensorSpec], image_bytes: int) -> tuple[Run, ...]:
    """The bytes of these parts, in as few runs as possible.

    Bytes between tensors belong to the holder of the end of the previous tensor; bytes before the first
    tensor, to the holder of its start. So parts that cover all tensors cover the image.

    Raises:
        LayoutError: a part is not of these tensors, or there are more runs than the limit: columns make
            many short runs, so let one source hold all ranks that share rows.
    """
    held = [spec for spec in sorted(tensors, key=lambda spec: spec.offset) if spec.nbytes]
    if not held or held[-1].offset + held[-1].nbytes > image_bytes:
        raise LayoutError(f"{len(held)} tensors with bytes do not lie in an image of {image_bytes}")
    nexts = [*(spec.offset for spec in held[1:]), image_bytes]
    reach = {spec.offset + spec.nbytes: begin for spec, begin in zip(held, nexts, strict=True)}
    return joined(
        Run(begin, reach.get(run.end, run.end) - begin)
        for run in joined(_bytes_of(parts, {spec.name: spec for spec in tensors}))
        for begin in (0 if run.offset == held[0].offset else run.offset,)
    )


def _bytes_of(parts: Iterable[Part], tensors: Mapping[str, TensorSpec]) -> Iterator[Run]:
    """The bytes of a part, without the gaps between tensors."""
    count = 0
    for (name, low, high), columns in _by_rows(parts, tensors).items():
        spec = tensors[name]
        row_bytes = spec.nbytes // rows_in(spec)
        item = row_bytes // columns_in(spec)
        if columns == [(0, columns_in(spec))]:
            yield Run(spec.offset + low * row_bytes, (high - low) * row_bytes)
            continue
        count += len(columns) * (high - low)
        if count > MAX_RUNS:
            raise LayoutError(f"{name}: columns of {high - low} rows are too many runs (`runs_of`)")
        for row in range(low, high):
            begin = spec.offset + row * row_bytes
            yield from (Run(begin + left * item, (right - left) * item) for left, right in columns)


def _by_rows(
    parts: Iterable[Part], tensors: Mapping[str, TensorSpec]
) -> dict[tuple[str, int, int], list[tuple[int, int]]]:
    """The columns that are held of equal rows, by offset; adjacent ones are joined."""
    found: defaultdict[tuple[str, int, int], list[tuple[int, int]]] = defaultdict(list)
    for part in parts:
        spec = tensors.get(part.tensor)
        if spec is None:
            raise LayoutError(f"{part.tensor} is no tensor of this image")
        if not spec.nbytes:
            continue
        right = part.right or columns_in(spec)
        rows_fit = 0 <= part.low < part.high <= rows_in(spec)
        if not (rows_fit and 0 <= part.left < right <= columns_in(spec)):
            raise LayoutError(f"{part} does not lie in {list(spec.shape)}")
        found[part.tensor, part.low, part.high].append((part.left, right))
    for columns in found.values():
        columns.sort()
        merged = [columns[0]]
        for left, right in columns[1:]:
            if left <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], right))
            else:
                merged.append((left, right))
        columns[:] = merged
    return found


def rows_in(spec: TensorSpec) -> int:
    """Extent of dimension 0; 1 where there is none."""
    return spec.shape[0] if spec.shape else 1


def columns_in(spec: TensorSpec) -> int:
    """Elements of one row."""
    return prod(spec.shape[1:])
