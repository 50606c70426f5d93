"""`NamedTensors`: weights of any trainer, laid out as an image.

The tensors are those of a state dict, or of a checkpoint's safetensors files. Owns their names, order and
layout, and the copy into the image. A trainer's module wrappers are not part of a name. All errors are found
before a byte is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gleaner.actors.model.tensor_spec import TensorSpec, image_bytes

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
GENERATION = "generation_config.json"
WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""Prefixes of torch.compile, FSDP1 and activation checkpoints; `module.` of DDP occurs only in front."""
Progress = Callable[[int], None]
"""Called with the number of bytes copied since the last call."""


class Unpublishable(ValueError):
    """These tensors or files cannot be an image; the text names the tensor or file, and the reason."""


@dataclass(frozen=True, slots=True)
class NamedTensors:
    """`specs`: the offset of each in the image. `tensors`: in the same order; each can be iterated once
    more.
    """

    specs: tuple[TensorSpec, ...]
    tensors: Callable[[], Iterator[Tensor]]

    @property
    def nbytes(self) -> int:
        """Bytes of the image."""
        return image_bytes(self.specs)

    def write(self, into: memoryview, progress: Progress | None = None) -> None:
        """Copy all of them, bit for bit, from any device."""
        target = torch.frombuffer(into, dtype=torch.uint8)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # wait for results on other streams than this thread's
        for spec, tensor in zip(self.specs, self.tensors(), strict=True):
            if spec.nbytes:
                place = target[spec.offset : spec.offset + spec.nbytes]
                place.copy_(tensor.contiguous().reshape(-1).view(torch.uint8))
            if progress is not None:
                progress(spec.nbytes)


def of_state(state: Mapping[str, Tensor], *, tied: bool = True) -> NamedTensors:
    """A state dict under its Hugging Face names, in its order.

    tied: of names that share one tensor whole, as embedding and head of many models do, only the first is
    kept; engines tie them again according to the model's config.

    Raises Unpublishable.
    """
    found: dict[str, Tensor] = {}
    seen: set[tuple[object, ...]] = set()
    for given, tensor in state.items():
        name = bare_name(given)
        if name in found:
            raise Unpublishable(f"{name!r} is there twice, once as {given!r}: publish one of them")
        require_plain(name, tensor)
        own = tensor.detach()
        same = (own.device, own.data_ptr(), own.dtype, own.shape, own.stride())
        if tied and own.numel() and same in seen:
            continue
        seen.add(same)
        found[name] = own
    found = dict(sorted(found.items(), key=lambda named: -named[1].element_size()))
    specs = laid_out([(name, _dtype(one), tuple(one.shape), one.nbytes) for name, one in found.items()])
    return NamedTensors(specs, lambda: iter(found.values()))


def of_folder(directory: Path) -> NamedTensors:
    """The tensors of a checkpoint: one safetensors file, or those that its index names; in the order of
    their names. Raises Unpublishable, for a file that is missing, torn or cut short too."""
    files = _files(directory)
    metas: list[tuple[str, str, tuple[int, ...], int]] = []
    where: dict[str, Path] = {}
    for path, names in files.items():
        with _opened(path) as file:
            there = set(file.keys())
            if names is not None and (absent := names - there):
                raise Unpublishable(f"{path} lacks {min(absent)!r}, which {INDEX} lists: copy it again")
            for name in sorted(there if names is None else names):
                part = file.get_slice(name)
                empty = (
                    torch.empty(0, dtype=file.get_tensor(name).dtype) if not part.get_shape() else part[:0]
                )
                shape = tuple(part.get_shape())
                size = torch.Size(shape).numel() * empty.element_size()
                metas.append((name, _dtype(empty), shape, size))
                where[name] = path
    if not metas:
        raise Unpublishable(f"{directory}: there is no tensor in its files")
    specs = laid_out(sorted(metas, key=lambda meta: (-getattr(torch, meta[1]).itemsize, meta)))

    def tensors() -> Iterator[Tensor]:
        for spec in specs:
            with _opened(where[spec.name]) as file:
                tensor: Tensor = file.get_tensor(spec.name)
            yield tensor

    return NamedTensors(specs, tensors)


def config_of_folder(directory: Path) -> bytes:
    """Its config.json, with the end tokens of its generation_config.json where there is one. Raises
    Unpublishable."""
    config = _object(directory / CONFIG)
    if (directory / GENERATION).exists():
        ends = _object(directory / GENERATION).get("eos_token_id")
        config |= {"eos_token_id": ends} if ends is not None else {}
    return json.dumps(config, sort_keys=True).encode()


def _object(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except OSError as problem:
        raise Unpublishable(f"{path}: {problem.strerror}; engines need it for the model's shape") from problem
    except (ValueError, RecursionError) as problem:
        raise Unpublishable(f"{path} is no JSON: {problem}") from problem
    return found


def bare_name(name: str) -> str:
    """The name without the wrappers of the module."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name.removeprefix("module.")


def _files(directory: Path) -> dict[Path, set[str] | None]:
    """The names to read of each file; None: all."""
    if not directory.is_dir():
        raise Unpublishable(f"{directory} is no directory: give that of a checkpoint")
    index = directory / INDEX
    if not index.exists():
        files = sorted(directory.glob("*.safetensors"))
        if len(files) != 1:
            raise Unpublishable(f"{directory} has {len(files)} safetensors files and no {INDEX}")
        return {files[0]: None}
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        pairs = [(str(name), str(file)) for name, file in weight_map.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise Unpublishable(f"{index} cannot be read: {problem!r}; copy the checkpoint again") from problem
    found: dict[Path, set[str] | None] = {}
    for name, file in sorted(pairs):
        if Path(file).name != file:
            raise Unpublishable(f"{index}: {file!r} is not a file beside it")
        names = found.setdefault(directory / file, set())
        assert names is not None
        names.add(name)
    return found


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise Unpublishable(f"{path} is missing: copy the checkpoint again") from None
    except (OSError, SafetensorError) as problem:
        raise Unpublishable(f"{path} is torn or cut short ({problem}): copy it again") from problem


def require_plain(name: str, tensor: object) -> None:
    """Raises Unpublishable unless it is a dense tensor with data, whole."""
    if not isinstance(tensor, Tensor):
        raise Unpublishable(f"{name!r} is {type(tensor).__name__}, not a tensor: publish weights alone")
    if hasattr(tensor, "placements"):
        raise Unpublishable(f"{name!r} is sharded over ranks (DTensor): publish parts, one from each rank")
    if tensor.is_meta:
        raise Unpublishable(f"{name!r} has no data, it is on the meta device: load it first")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex():
        raise Unpublishable(f"{name!r} is {tensor.layout} of {tensor.dtype}: only dense numbers are images")


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def laid_out(metas: Sequence[tuple[str, str, tuple[int, ...], int]]) -> tuple[TensorSpec, ...]:
    """Name, dtype, shape, bytes, those of wide elements first.

    Tensors are contiguous, as in a safetensors file, so that each offset is a multiple of its element. Raises
    Unpublishable for none."""
    specs, offset = [], 0
    for name, dtype, shape, nbytes in metas:
        specs.append(TensorSpec(name, dtype, shape, offset, nbytes))
        offset += nbytes
    if not offset:
        raise Unpublishable("there is nothing to publish: no tensor has a byte")
    return tuple(specs)
