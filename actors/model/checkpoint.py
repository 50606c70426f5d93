"""Reading and writing of Hugging Face checkpoint directories.

Owns the files: `config.json`, one or several `*.safetensors`, the tokenizer's files. Does not own the durable
rename of a finished directory (StateManager) or the meaning of the settings (`qwen3_config`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gleaner.actors.model import checkpoint_files
from gleaner.actors.model.checkpoint_files import COPY_AGAIN, INDEX, SINGLE, Shape
from gleaner.actors.model.meta_init import unmade
from gleaner.actors.model.qwen3 import BadCheckpoint, Qwen3, Qwen3Config

__all__ = ["COPY_AGAIN", "INDEX", "SINGLE", "BadCheckpoint", "load_checkpoint", "save_checkpoint"]
COPIED = (  # files of a checkpoint beside its weights; other files of the source are not copied
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
Rows = Callable[[int], range]
"""The wanted rows out of so many."""


def load_checkpoint(directory: str | Path, dtype: torch.dtype = torch.float32) -> Qwen3:
    """Load a Qwen3 model from a Hugging Face directory, its parameters cast to `dtype`.

    Reads `model.safetensors`, or the shards that `model.safetensors.index.json` names. Raises
    `BadCheckpoint`, which names the file or tensor, for a missing or truncated file and for a missing,
    unknown or misshapen tensor.
    """
    model = empty_model(directory)
    model.load_state_dict(read_state(directory, model, dtype), assign=True)
    return model.requires_grad_(True)


def empty_model(directory: str | Path) -> Qwen3:
    """The model of a Hugging Face directory, on the meta device: no memory, no random numbers, no weights.
    Raises `BadCheckpoint`."""
    checkpoint_files.require_directory(directory)
    config = Qwen3Config.load(directory)
    return unmade(config)


def read_state(
    directory: str | Path, model: Qwen3, dtype: torch.dtype = torch.float32, rows: Rows | None = None
) -> dict[str, Tensor]:
    """The weights of a model from its directory, cast to `dtype`, by their names in its state dict.

    `rows` selects the wanted rows (of dimension 0); no others are read. Raises as `load_checkpoint`.
    """
    directory = Path(directory)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    state: dict[str, Tensor] = {}
    for path, names in checkpoint_files.files(directory).items():
        state |= _read(path, names, expected, dtype, model.config.tie_word_embeddings, rows)
    checkpoint_files.require_all(directory, expected, set(state))
    return state


def save_checkpoint(state: Mapping[str, Tensor], directory: str | Path, like: str | Path) -> None:
    """Write a complete Hugging Face directory that `Qwen3ForCausalLM.from_pretrained` loads.

    `state` is `Qwen3.state_dict()`; `like` the directory whose config and tokenizer files are copied. Raises
    `BadCheckpoint` if the state does not fit that config, `OSError` if the disk is full. Nothing is synced to
    disk or renamed here.
    """
    directory, like = Path(directory), Path(like)
    expected = unmade(Qwen3Config.load(like)).state_dict()
    for name, want in expected.items():
        have = state.get(name)
        if have is None or have.shape != want.shape:
            shape = "missing" if have is None else list(have.shape)
            raise BadCheckpoint(
                f"{name!r} to be saved is {shape}, {like}/config.json wants {list(want.shape)}"
            )
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: state[name].detach().cpu().contiguous() for name in expected}
    save_companions(directory, like, next(iter(tensors.values())).dtype)
    try:
        save_file(tensors, directory / SINGLE, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{directory / SINGLE} could not be written ({error}): is the disk full?") from error


def save_companions(directory: Path, like: Path, dtype: torch.dtype) -> None:
    """Write the files beside the weights, which are of `dtype`: config and tokenizer, those of `like`."""
    for name in COPIED:
        if (like / name).exists():
            shutil.copyfile(like / name, directory / name)
    _write_dtype(directory / "config.json", dtype)


def _read(
    path: Path,
    names: set[str] | None,
    expected: Mapping[str, Shape],
    dtype: torch.dtype,
    tied: bool,
    rows: Rows | None,
) -> dict[str, Tensor]:
    """The tensors of one file, checked and cast."""
    state: dict[str, Tensor] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in checkpoint_files.wanted(path, set(file.keys()), names, tied):
                shape = tuple(file.get_slice(name).get_shape())
                checkpoint_files.require_shape(path, name, shape, expected)
                tensor = file.get_tensor(name) if rows is None else read_rows(file, name, rows)
                # A copy even where the dtype fits: the file may be replaced while the model lives.
                state[name] = _weights(path, name, tensor, dtype)
    except (SafetensorError, OSError) as error:
        raise checkpoint_files.unreadable(path, error) from error
    return state


def read_rows(file: safe_open, name: str, rows: Rows) -> Tensor:
    """The wanted rows of a tensor in an open safetensors file; no others are read."""
    part = file.get_slice(name)  # type: ignore[no-untyped-call]
    shape = tuple(part.get_shape())
    wanted = rows(shape[0])
    if not wanted:
        return torch.empty((0, *shape[1:]))
    tensor: Tensor = part[wanted.start : wanted.stop]
    return tensor


def _weights(path: Path, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor cast, if it can be weights."""
    if not tensor.is_floating_point():
        raise checkpoint_files.no_numbers(path, name, str(tensor.dtype))
    cast = tensor.to(dtype, copy=True)
    if not bool(torch.isfinite(cast.sum(dtype=torch.float64))):
        raise checkpoint_files.not_finite(path, name)
    return cast


def _write_dtype(config: Path, dtype: torch.dtype) -> None:
    """Record the dtype of the weights in config.json, or loaders would cast them back."""
    values = json.loads(config.read_bytes())
    values.pop("torch_dtype", None)  # the name before transformers 5
    values["dtype"] = str(dtype).removeprefix("torch.")
    config.write_text(json.dumps(values, indent=2) + "\n")
