"""Index and safetensors headers of a version on a shared file system.

Owns both formats, read and written, and the names of folders. Pure: `reader` and `writer` have the
files. Sources: https://huggingface.co/docs/safetensors, and slime's and Stitch's published versions:

    weight_v000007/model.safetensors.index.json   metadata and which tensor is in which file
    weight_v000007/model-00000-of-00001.safetensors

A version is whole (any Hugging Face checkpoint), or its index's metadata has `delta_encoding`, and `version`,
`base_version`, `compression_format` and `checksum_format` beside it. Then tensors are differences
(`codec`), runs of bytes (U8), and the header of each file has the digests of what they become, by name.
Tensors that did not change are absent; a version without any has no files.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import msgspec

from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.actors.weights.disk.codec import CHECKSUMS, ENCODINGS, DiskDeltaError

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
PREFIX: Final = "weight_v"
POINTER: Final = "latest"
"""Stitch's: beside the folder of the versions, the name of the newest, `RUN/weight_v000007`."""
UPDATES: Final = "updates"
"""Stitch's folder of versions, beside the pointer."""
MAX_HEADER_BYTES: Final = 100_000_000  # what safetensors itself takes
ALIGNMENT_BYTES: Final = 64  # of a tensor in an image, as `weight_image` has it
HEADER_LENGTH: Final = struct.Struct("<Q")

DTYPES: Final = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "I16": ("int16", 2),
    "U16": ("uint16", 2),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I32": ("int32", 4),
    "U32": ("uint32", 4),
    "F32": ("float32", 4),
    "I64": ("int64", 8),
    "U64": ("uint64", 8),
    "F64": ("float64", 8),
}
"""By their names in safetensors: torch's names, and bytes of an element."""
_NAMES: Final = {torch: name for name, (torch, _) in DTYPES.items()}


class BadVersion(DiskDeltaError):
    """The files of a version contradict themselves or each other, or are not whole."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of a version that is a difference: its base version and its encoding."""

    base_version: int
    encoding: str
    checksum: str


@dataclass(frozen=True, slots=True)
class Index:
    """The index of a version. `version`: None if the index does not give it. `terms`: None for a whole
    version. `files`: tensor to file. `root`: of our manifest of the version, hexadecimal, where we wrote it;
    "" else."""

    version: int | None
    terms: Terms | None
    files: dict[str, str]
    root: str = ""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a safetensors file: its tensors in the order of their bytes, offsets counted from the
    start of the file, and its metadata."""

    tensors: tuple[TensorSpec, ...]
    metadata: dict[str, str]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: dict[str, object] = {}


class _Tensor(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def folder_of(version: int) -> str:
    """The name of a version's folder."""
    return f"{PREFIX}{version:06d}"


def version_of(folder: str) -> int | None:
    """The version of a folder's name, or of a pointer's text; None for another one."""
    digits = folder.strip().rpartition("/")[2].removeprefix(PREFIX)
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


def read_index(data: bytes) -> Index:
    """Raises BadVersion."""
    try:
        index = msgspec.json.decode(data, type=_Index)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadVersion(f"{INDEX}: {len(data)} bytes are no index: {error}") from error
    for file in index.weight_map.values():
        if not file or "/" in file or file in (".", "..") or "\0" in file:
            raise BadVersion(f"{INDEX}: {file!r} is no name of a file beside it")
    about = index.metadata
    version = _number(about, "version") if "version" in about else None
    terms = None
    if "delta_encoding" in about:
        pressed = about.get("compression_format")
        terms = Terms(
            _number(about, "base_version"), str(about["delta_encoding"]), str(about.get("checksum_format"))
        )
        if version is None or pressed != "zstd":
            raise BadVersion(f"{INDEX}: a difference of version {version}, compressed by {pressed!r}")
        if terms.encoding not in ENCODINGS or terms.checksum not in CHECKSUMS:
            raise BadVersion(
                f"{INDEX}: encoding {terms.encoding!r}, checksum {terms.checksum!r}; "
                f"known are {', '.join((*ENCODINGS, *CHECKSUMS))}"
            )
    return Index(version, terms, index.weight_map, str(about.get("gleaner_root", "")))


def write_index(index: Index) -> bytes:
    """Encode the index as slime's engines and Stitch's replicas read it."""
    about: dict[str, str] = {}
    if index.version is not None:
        about["version"] = f"{index.version:06d}"
    if index.terms is not None:
        about |= {
            "base_version": f"{index.terms.base_version:06d}",
            "delta_encoding": index.terms.encoding,
            "compression_format": "zstd",
            "checksum_format": index.terms.checksum,
        }
    if index.root:
        about["gleaner_root"] = index.root
    return json.dumps({"metadata": about, "weight_map": index.files}, indent=1).encode()


def read_header(text: bytes, file_bytes: int) -> Header:
    """The header of a safetensors file, from its JSON. Raises BadVersion unless its tensors are contiguous
    and end at the end of the file."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(fields.pop("__metadata__", b"{}"), type=dict[str, str])
        tensors = {name: msgspec.json.decode(raw, type=_Tensor) for name, raw in fields.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadVersion(f"{len(text)} bytes are no header of safetensors: {error}") from error
    begin = end = HEADER_LENGTH.size + len(text)
    found = []
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].data_offsets, item[0])):
        dtype, item_bytes = DTYPES.get(tensor.dtype, ("", 0))
        nbytes = tensor.data_offsets[1] - tensor.data_offsets[0]
        if not dtype or min(tensor.shape, default=0) < 0 or prod(tensor.shape) * item_bytes != nbytes:
            raise BadVersion(f"{name!r} is {tensor.dtype}{list(tensor.shape)} in {nbytes} bytes")
        if begin + tensor.data_offsets[0] != end:
            raise BadVersion(f"{name!r} begins at {begin + tensor.data_offsets[0]}, not at {end}")
        found.append(TensorSpec(name, dtype, tensor.shape, end, nbytes))
        end += nbytes
    if end != file_bytes:
        raise BadVersion(f"its tensors end at byte {end}, the file at {file_bytes}: it is torn")
    return Header(tuple(found), metadata)


def write_header(tensors: Sequence[TensorSpec], metadata: Mapping[str, str]) -> bytes:
    """The first bytes of a safetensors file that holds these tensors in this order; their offsets are not
    used. Raises BadVersion for a dtype that the format does not have."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for spec in tensors:
        if spec.dtype not in _NAMES:
            raise BadVersion(f"{spec.name!r} is of {spec.dtype}; safetensors has {', '.join(_NAMES)}")
        begin, end = end, end + spec.nbytes
        entries[spec.name] = {
            "dtype": _NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return HEADER_LENGTH.pack(len(text)) + text


def image_layout(tensors: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The offsets of these tensors in an image of ours: in this order, each at a multiple of 64 bytes."""
    placed, end = [], 0
    for spec in tensors:
        offset = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        placed.append(msgspec.structs.replace(spec, offset=offset))
        end = offset + spec.nbytes
    return tuple(placed)


def _number(about: Mapping[str, object], key: str) -> int:
    text = str(about.get(key))
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadVersion(f"{INDEX}: {key} is {text!r}, not a number")
    return int(text)
