"""`Shards`: one trainer rank's weights, written into the image of its host.

Owns the copy, and the reading of torch's DTensor placements. Nothing is gathered.
`gleaner.actors.weights.shards.layout` maps parts to bytes of the image.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gleaner.actors.model.byte_ranges import Run
from gleaner.actors.model.named_tensors import Unpublishable, bare_name, laid_out, require_plain
from gleaner.actors.model.tensor_spec import TensorSpec, image_bytes
from gleaner.actors.weights.shards.layout import LayoutError, Part, columns_in, rows_in, runs_of


@dataclass(frozen=True, slots=True)
class Shards:
    """`specs`: all tensors of the image, the same on every rank. `pieces`: this rank's pieces of them."""

    specs: tuple[TensorSpec, ...]
    pieces: tuple[tuple[Part, Tensor], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole image."""
        return image_bytes(self.specs)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The bytes that this rank writes. Raises LayoutError."""
        return runs_of((part for part, _ in self.pieces), self.specs, self.nbytes)

    def write(self, into: memoryview) -> None:
        """Copy them into the image, of which other ranks write the rest; bytes between own tensors become
        zero."""
        target = torch.frombuffer(into, dtype=torch.uint8)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # wait for results on other streams than this thread's
        specs = {spec.name: spec for spec in self.specs}
        for part, tensor in self.pieces:
            spec = specs[part.tensor]
            rows, item = rows_in(spec), tensor.element_size()
            right = part.right or columns_in(spec)
            place = target[spec.offset : spec.offset + spec.nbytes].view(rows, -1)
            own = tensor.reshape(tensor.shape[0] if tensor.dim() else 1, -1)
            own = own[part.at : part.at + part.high - part.low].contiguous()
            place[part.low : part.high, part.left * item : right * item].copy_(own.view(torch.uint8))
        self._clear_gaps(target)

    def _clear_gaps(self, target: Tensor) -> None:
        runs = self.runs
        begins = [run.offset for run in runs]
        held = sorted((spec for spec in self.specs if spec.nbytes), key=lambda spec: spec.offset)
        for one, following in pairwise(held):
            end = one.offset + one.nbytes
            at = bisect_right(begins, end - 1) - 1
            if end < following.offset and at >= 0 and runs[at].end >= following.offset:
                target[end : following.offset] = 0


def of_parts(tensors: Mapping[str, Tensor], parts: Sequence[Part], whole: Sequence[TensorSpec]) -> Shards:
    """Parts that the trainer names itself (`layout.fsdp_parts`, `megatron_layout.megatron_parts`).

    Args:
        tensors: this rank's own, by the names in the parts (`Part.local`, or the tensor's).
        whole: the tensors of the image, as `layout_of` has them; the same on every rank.

    Raises Unpublishable.
    """
    specs = {spec.name: spec for spec in whole}
    pieces = []
    for part in parts:
        spec, name = specs.get(part.tensor), part.local or part.tensor
        if spec is None:
            raise Unpublishable(f"{part.tensor!r} is no tensor of the image")
        tensor = tensors.get(name)
        require_plain(name, tensor)
        assert tensor is not None
        own, right = tensor.detach(), part.right or columns_in(spec)
        rows, columns = (own.shape[0], math.prod(own.shape[1:])) if own.dim() else (1, 1)
        if str(own.dtype) != f"torch.{spec.dtype}":
            raise Unpublishable(f"{name!r} is {own.dtype}, the image has {spec.dtype} there")
        if part.at + part.high - part.low > rows or columns != right - part.left:
            raise Unpublishable(
                f"{name!r} is {list(own.shape)}, which is not rows {part.low} to {part.high} (elements "
                f"{part.left} to {right} of each) of {part.tensor!r} {list(spec.shape)}"
            )
        pieces.append((part, own))
    return _checked(Shards(tuple(whole), tuple(pieces)))


def layout_of(shapes: Mapping[str, tuple[torch.dtype, Sequence[int]]]) -> tuple[TensorSpec, ...]:
    """The image of tensors of these dtypes and shapes, in this order, those of wide elements first. Raises
    Unpublishable."""
    rows = []
    for name, (dtype, shape) in sorted(shapes.items(), key=lambda one: -one[1][0].itemsize):
        nbytes = math.prod(shape) * dtype.itemsize
        rows.append((name, str(dtype).removeprefix("torch."), tuple(shape), nbytes))
    return laid_out(rows)


def of_dtensors(state: Mapping[str, Tensor], *, first: bool) -> Shards:
    """A state dict in which tensors are sharded over ranks (FSDP2): each rank gives its shard; of replicated
    shards the first replica gives it. Tensors that are no DTensors are given by the `first` rank.

    Raises Unpublishable, for a placement that is neither along dimension 0 nor along columns too.
    """
    from torch.distributed.tensor import DTensor

    shapes: dict[str, tuple[torch.dtype, Sequence[int]]] = {}
    parts: list[Part] = []
    own: dict[str, Tensor] = {}
    for given, tensor in state.items():
        name = bare_name(given)
        if name in shapes:
            raise Unpublishable(f"{name!r} is there twice, once as {given!r}: publish one of them")
        shapes[name] = (tensor.dtype, tuple(tensor.shape))
        if isinstance(tensor, DTensor):
            if (part := _part_of(name, tensor)) is not None:
                parts.append(part)
                own[name] = tensor.to_local()
        elif first and tensor.numel():
            rows = tensor.shape[0] if tensor.dim() else 1
            parts.append(Part(name, 0, rows))
            own[name] = tensor
    return of_parts(own, parts, layout_of(shapes))


def _part_of(name: str, tensor: Tensor) -> Part | None:
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    assert isinstance(tensor, DTensor)
    at = tensor.device_mesh.get_coordinate()
    if at is None:
        return None
    for place, index in zip(tensor.placements, at, strict=True):
        if type(place) not in (Shard, Replicate):
            raise Unpublishable(f"{name!r} is placed as {place}: its rows are not one run of the whole")
        if isinstance(place, Replicate) and index:
            return None
    local, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if not math.prod(local):
        return None
    if any(size != whole for size, whole in zip(local[2:], tensor.shape[2:], strict=True)):
        raise Unpublishable(f"{name!r} is cut along dimension 2 or later: cut it along dimension 0 or 1")
    if not local:
        return Part(name, 0, 1)
    inner = math.prod(tensor.shape[2:])
    cut = len(local) > 1 and local[1] != tensor.shape[1]
    left, right = (offset[1] * inner, (offset[1] + local[1]) * inner) if cut else (0, 0)
    return Part(name, offset[0], offset[0] + local[0], left, right)


def _checked(shards: Shards) -> Shards:
    try:
        _ = shards.runs
    except LayoutError as problem:
        raise Unpublishable(str(problem)) from problem
    return shards
