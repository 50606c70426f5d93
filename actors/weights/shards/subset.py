"""Chunks and tensors that a host needs of a version. Pure.

A host needs all of it, or the part of an engine that is one pipeline stage and expert rank of several."""

from __future__ import annotations

from gleaner.actors.model.byte_ranges import chunks_needed
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.protocol.weights import EnginePart
from gleaner.actors.weights.image.manifest import Manifest
from gleaner.actors.weights.shards.layout import (
    LayoutError,
    Part,
    RankLayers,
    engine_parts,
    even,
    place_of,
    rows_in,
    runs_of,
)
from gleaner.transport.bulk_frames import Chunk


def chunks_of(manifest: Manifest, part: EnginePart | None) -> tuple[Chunk, ...]:
    """The chunks that a host pulls, by offset. Raises LayoutError where layers or experts do not divide."""
    if part is None:
        return manifest.chunks
    runs = runs_of(_parts(manifest, part), manifest.tensors, manifest.image_bytes)
    return tuple(manifest.chunks[number] for number in chunks_needed(runs, manifest.chunks))


def tensors_of(manifest: Manifest, part: EnginePart | None) -> tuple[TensorSpec, ...]:
    """The tensors that an engine finds in the image: whole tensors, and rows of those that stack all experts.
    Raises LayoutError."""
    if part is None:
        return manifest.tensors
    specs = {spec.name: spec for spec in manifest.tensors}
    return tuple(_rows(specs[one.tensor], one) for one in _parts(manifest, part))


def _rows(spec: TensorSpec, part: Part) -> TensorSpec:
    if part.high - part.low == rows_in(spec):
        return spec
    row_bytes = spec.nbytes // rows_in(spec)
    count = part.high - part.low
    shape = (count, *spec.shape[1:])
    offset = spec.offset + part.low * row_bytes
    return TensorSpec(spec.name, spec.dtype, shape, offset, count * row_bytes)


def _parts(manifest: Manifest, part: EnginePart) -> tuple[Part, ...]:
    if part.stages < 1 or part.ranks < 1:
        raise LayoutError(f"{part}: there is at least one stage, and one rank")
    layers = experts = 0
    for spec in manifest.tensors:
        place = place_of(spec.name)
        layers = max(layers, place.layer + 1 if place.layer is not None else 0)
        experts = max(experts, place.expert + 1 if place.expert is not None else 0)
        experts = max(experts, rows_in(spec) if place.stacked else 0)
    held = RankLayers(
        layers=even(layers, part.stage, part.stages),
        experts=even(experts, part.rank, part.ranks),
        first=part.stage == 0,
        last=part.stage == part.stages - 1,
    )
    found = engine_parts(manifest.tensors, held)
    if not found:
        raise LayoutError(f"{part} has no tensor of version {manifest.version}")
    return found
