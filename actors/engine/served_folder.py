"""A verified image of weights as a Hugging Face folder, for servers that load nothing else.

Owns the folder, beside the image in shared memory, and what dead processes left of theirs. There too lies
what our loader inside of a server is told and tells (`sglang_plugin`). Adapter: files.

A safetensors file begins with its header and an image does not, so the tensors are copied, once, within the
kernel; the copy is removed when the server has loaded it.
"""

import json
import os
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec

from actors.engine.model_config import of_checkpoint, qwen3
from actors.engine.qwen3_config import Qwen3Config
from actors.engine.tensor_spec import TensorSpec
from actors.weights.messages import Fetched

PREFIX = "served-"
WEIGHTS = "model.safetensors"
ORDER, REPORTS = "order.json", "loaded-*.json"
_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
_COPY_BYTES = 1 << 30


def version_name(fetched: Fetched) -> str:
    """What a server calls these weights."""
    return f"v{fetched.version}-{fetched.root[:4].hex()}"


class _Report(msgspec.Struct):
    """Of a rank of a server: why it did not load, or ""."""

    problem: str


class ServedFolder:
    """The folder of one process, made when the first image comes; `remove` it at the end."""

    def __init__(self) -> None:
        self._path: Path | None = None

    def write(self, fetched: Fetched, *, weights: bool = True) -> Path:
        """A folder with the model's settings and, if wanted, these weights, unless they are there. Blocks
        while it copies. Raises OSError, ValueError for a dtype that safetensors does not have."""
        folder = self._made(fetched)
        (folder / "config.json").write_text(settings_of(fetched.model_config, fetched.tensors[0].dtype))
        if weights and not (folder / WEIGHTS).exists():
            copy_weights(Path(fetched.path), fetched.tensors, folder / WEIGHTS)
        return folder

    def write_order(self, fetched: Fetched) -> Path:
        """A file that tells our loader where the image and each of its tensors lies. Raises OSError."""
        order = self._made(fetched) / ORDER
        for report in order.parent.glob(REPORTS):
            report.unlink()
        rows = [(spec.name, spec.dtype, spec.shape, spec.offset, spec.nbytes) for spec in fetched.tensors]
        order.write_bytes(msgspec.json.encode({"path": fetched.path, "tensors": rows}))
        return order

    def reports(self, order: Path) -> list[str]:
        """What the ranks said until now that carried the order out: why one did not, or ""."""
        found = sorted(order.parent.glob(REPORTS))
        return [msgspec.json.decode(report.read_bytes(), type=_Report).problem for report in found]

    def forget(self, fetched: Fetched) -> None:
        """The server has loaded these weights: free their memory; the settings stay."""
        folder = self._made(fetched)
        for left in (folder / WEIGHTS, folder / ORDER, *folder.glob(REPORTS)):
            left.unlink(missing_ok=True)

    def log(self) -> Path:
        """Where a server that reads this folder may write what it says."""
        assert self._path is not None, "write comes first"
        return self._path / "server.log"

    def remove(self) -> None:
        """All of it; a second call does nothing."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)

    def _made(self, fetched: Fetched) -> Path:
        """The folder of these weights."""
        store = Path(fetched.path).parent
        if self._path is None:
            _sweep(store)
            self._path = store / f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        folder = self._path / version_name(fetched)
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def settings_of(model_config: bytes, dtype: str) -> str:
    """`config.json` for a server: the published one, of whatever architecture, or one that is made."""
    values = of_checkpoint(model_config)
    if values is None:
        return settings(qwen3(model_config), dtype)
    return json.dumps({**values, "dtype": dtype, "torch_dtype": dtype}, indent=2)


def settings(model: Qwen3Config, dtype: str) -> str:
    """`config.json`, as transformers 5 writes it."""
    same = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "tie_word_embeddings",
        "max_position_embeddings",
        "initializer_range",
    )
    told = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": False,
        "use_sliding_window": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "rope_theta": model.rope_theta,
        "dtype": dtype,
        "torch_dtype": dtype,
        "eos_token_id": list(model.eos_token_ids) or None,
        **{name: getattr(model, name) for name in same},
    }
    return json.dumps(told, indent=2)


def header(tensors: Sequence[TensorSpec]) -> bytes:
    """The first bytes of a safetensors file whose data are these tensors, one after the other.

    Source: https://huggingface.co/docs/safetensors: length u64 little-endian, then JSON, padded with spaces.
    """
    entries: dict[str, dict[str, object]] = {}
    end = 0
    for spec in tensors:
        if spec.dtype not in _DTYPES:
            raise ValueError(f"{spec.name!r} is of {spec.dtype}, expected one of {sorted(_DTYPES)}")
        begin, end = end, end + spec.nbytes
        dtype, shape = _DTYPES[spec.dtype], list(spec.shape)
        entries[spec.name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def copy_weights(image: Path, tensors: Sequence[TensorSpec], target: Path) -> None:
    """The tensors of an image as a safetensors file, which appears when it is whole."""
    draft = target.with_suffix(".draft")
    with image.open("rb") as source, draft.open("wb", buffering=0) as file:
        file.write(header(tensors))
        for begin, end in _runs(tensors):
            at = begin
            while at < end:
                copied = os.sendfile(file.fileno(), source.fileno(), at, min(_COPY_BYTES, end - at))
                if copied == 0:
                    raise OSError(f"{image} ends at byte {at}, its tensors at {end}")
                at += copied
    draft.rename(target)


def _runs(tensors: Sequence[TensorSpec]) -> list[tuple[int, int]]:
    """Byte ranges of the image, in the order of the tensors; neighbours joined."""
    runs: list[tuple[int, int]] = []
    for spec in tensors:
        if runs and runs[-1][1] == spec.offset:
            runs[-1] = (runs[-1][0], spec.offset + spec.nbytes)
        else:
            runs.append((spec.offset, spec.offset + spec.nbytes))
    return runs


def _sweep(store: Path) -> None:
    """Remove the folders of processes that are gone."""
    for left in sorted(store.glob(f"{PREFIX}*")):
        pid = left.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)
