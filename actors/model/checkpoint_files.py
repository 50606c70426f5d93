"""Check of a Qwen3 checkpoint directory (files, names, shapes), without torch.

Owns the names and shapes of the tensors, and the refusal of directories that do not have them. Reading them
for use is `checkpoint`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from gleaner.actors.model.qwen3_config import BadCheckpoint, Qwen3Config

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
COPY_AGAIN = "copy the checkpoint again"
LOOKED_AT = 1 << 24
"""Elements that are checked together for a NaN."""
Shape = tuple[int, ...]
VIEWS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Numpy's dtypes for those of a safetensors file; numpy has no bfloat16."""
BF16_EXPONENT = 0x7F80


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def layout(config: Qwen3Config) -> dict[str, Shape]:
    """The tensors of a model of these sizes, by their names in its `state_dict()`."""
    hidden, wide, head = config.hidden_size, config.intermediate_size, config.head_dim
    q_size, kv_size = config.num_attention_heads * head, config.num_key_value_heads * head
    found: dict[str, Shape] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for number in range(config.num_hidden_layers):
        layer = f"model.layers.{number}."
        found |= {
            f"{layer}self_attn.q_proj.weight": (q_size, hidden),
            f"{layer}self_attn.k_proj.weight": (kv_size, hidden),
            f"{layer}self_attn.v_proj.weight": (kv_size, hidden),
            f"{layer}self_attn.o_proj.weight": (hidden, q_size),
            f"{layer}self_attn.q_norm.weight": (head,),
            f"{layer}self_attn.k_norm.weight": (head,),
            f"{layer}mlp.gate_proj.weight": (wide, hidden),
            f"{layer}mlp.up_proj.weight": (wide, hidden),
            f"{layer}mlp.down_proj.weight": (hidden, wide),
            f"{layer}input_layernorm.weight": (hidden,),
            f"{layer}post_attention_layernorm.weight": (hidden,),
        }
    found["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        found["lm_head.weight"] = (config.vocab_size, hidden)
    return found


def check(directory: str | Path) -> Qwen3Config:
    """Check everything for which `load_checkpoint` refuses a directory. Raises `BadCheckpoint` as it does."""
    directory = Path(directory)
    require_directory(directory)
    config = Qwen3Config.load(directory)
    expected = layout(config)
    held: set[str] = set()
    for path, names in files(directory).items():
        held |= _check(path, names, expected, config.tie_word_embeddings)
    require_all(directory, expected, held)
    return config


def require_directory(directory: str | Path) -> None:
    """Raises `BadCheckpoint` unless it is a directory."""
    if not Path(directory).is_dir():
        raise BadCheckpoint(f"{directory} is not a directory: give a Hugging Face checkpoint directory")


def files(directory: Path) -> dict[Path, set[str] | None]:
    """The files to read, each with the tensors that the index promises in it (None: all that it holds).
    Raises `BadCheckpoint`."""
    if (directory / SINGLE).exists():
        return {directory / SINGLE: None}
    index = directory / INDEX
    if not index.exists():
        raise BadCheckpoint(f"{directory} has neither {SINGLE} nor {INDEX}: {COPY_AGAIN}")
    try:
        weight_map = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise BadCheckpoint(f"{index} is no index of shards ({error}): {COPY_AGAIN}") from error
    by_file: dict[Path, set[str]] = {}
    for tensor, file in weight_map.items():
        if Path(file).name != file:
            raise BadCheckpoint(f"{index}: {file!r} is outside of the directory, expected a file name")
        by_file.setdefault(directory / file, set()).add(tensor)
    return dict(by_file)


def wanted(path: Path, held: set[str], names: set[str] | None, tied: bool) -> list[str]:
    """The tensors of a file that are weights of the model, sorted. Raises `BadCheckpoint` if one is missing
    that is in the index."""
    if names is not None and (lost := names - held):
        raise BadCheckpoint(f"{path} lacks {min(lost)!r}, which {INDEX} promises: {COPY_AGAIN}")
    # Some writers store the tied output matrix and the RoPE table too: no weights of their own.
    return [
        name
        for name in sorted(held if names is None else names)
        if not ((tied and name == "lm_head.weight") or name.endswith("rotary_emb.inv_freq"))
    ]


def require_shape(path: Path, name: str, shape: Shape, expected: Mapping[str, Shape]) -> None:
    """Raises `BadCheckpoint` for a tensor that is not in the model, or has another shape there."""
    if name not in expected:
        raise BadCheckpoint(f"{path} holds {name!r}, which a model of this config.json does not have")
    if shape != expected[name]:
        raise BadCheckpoint(
            f"{path}: {name!r} has shape {list(shape)}, config.json asks for {list(expected[name])}: "
            "the two belong to different models"
        )


def require_all(directory: Path, expected: Mapping[str, Shape], held: set[str]) -> None:
    """Raises `BadCheckpoint` if a tensor is in no file."""
    if missing := expected.keys() - held:
        raise BadCheckpoint(
            f"{directory}: {len(missing)} tensors are in no file, the first is {min(missing)!r}: "
            f"{COPY_AGAIN}, and check that config.json belongs to these weights"
        )


def unreadable(path: Path, error: Exception) -> BadCheckpoint:
    """The error for a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return BadCheckpoint(f"{path} is missing: {COPY_AGAIN}")
    return BadCheckpoint(f"{path} is truncated or damaged ({error}): {COPY_AGAIN}")


def not_finite(path: Path, name: str) -> BadCheckpoint:
    """The error for weights that are not finite: a NaN would otherwise be found only in the loss."""
    return BadCheckpoint(f"{path}: {name!r} holds NaN or infinity: {COPY_AGAIN}")


def no_numbers(path: Path, name: str, dtype: str) -> BadCheckpoint:
    """The error for integers in the place of weights."""
    return BadCheckpoint(f"{path}: {name!r} is of {dtype}, expected floating-point numbers")


def _check(path: Path, names: set[str] | None, expected: Mapping[str, Shape], tied: bool) -> set[str]:
    """Check the weights of one file."""
    try:
        with safe_open(path, framework="numpy") as file:  # it checks the header, and that nothing is cut off
            chosen = wanted(path, set(file.keys()), names, tied)
        with path.open("rb") as raw:
            size = int.from_bytes(raw.read(8), "little")
            header = msgspec.json.decode(raw.read(size), type=dict[str, msgspec.Raw])
        for name in chosen:
            tensor = msgspec.json.decode(header[name], type=_Tensor)
            require_shape(path, name, tuple(tensor.shape), expected)
            if not tensor.dtype.startswith(("F", "BF")):
                raise no_numbers(path, name, tensor.dtype)
            if tensor.dtype in VIEWS and not _finite(path, 8 + size, tensor):
                raise not_finite(path, name)
    except (SafetensorError, OSError) as error:
        raise unreadable(path, error) from error
    return set(chosen)


def _finite(path: Path, data: int, tensor: _Tensor) -> bool:
    """Whether none of its elements is NaN or infinite. data: the offset of the file's data."""
    begin, end = tensor.data_offsets
    view = np.dtype(VIEWS[tensor.dtype])
    if begin == end:
        return True
    whole = np.memmap(path, view, "r", data + begin, ((end - begin) // view.itemsize,))
    for at in range(0, len(whole), LOOKED_AT):
        part = whole[at : at + LOOKED_AT]
        bad = (part & BF16_EXPONENT) == BF16_EXPONENT if tensor.dtype == "BF16" else ~np.isfinite(part)
        if bad.any():
            return False
    return True
