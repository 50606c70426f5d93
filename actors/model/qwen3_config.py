"""`Qwen3Config`: shape of a Qwen3 dense model, from a Hugging Face `config.json`.

Owns: which settings of the architecture we understand, and the refusal of the others. Does not own weights
(`checkpoint`) or computation (`qwen3`). Pure but for reading two small JSON files.

Source: `Qwen3Config` of transformers 5 (rope in `rope_parameters`) and 4 (rope in `rope_theta`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T", int, float, bool, str)

MAX_SIZE = 10_000_000
"""Largest size of any dimension; the largest vocabularies have some hundred thousand entries."""
MAX_LAYERS = 10_000
"""A model of more would take minutes to lay out, only to be refused for its missing tensors."""


class BadCheckpoint(ValueError):
    """A checkpoint directory cannot be used; the text names the file and what to do about it."""


@dataclass(frozen=True)
class Qwen3Config:
    """Sizes of one Qwen3 dense model, all counted in elements.

    `eos_token_ids` are the tokens that end a response: those of `generation_config.json` where it names any,
    else those of `config.json`; possibly none.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 32_768
    initializer_range: float = 0.02
    eos_token_ids: tuple[int, ...] = ()

    @classmethod
    def load(cls, directory: str | Path) -> Qwen3Config:
        """Read `config.json` of a checkpoint directory.

        Raises `BadCheckpoint` that names the file and the key, where a key is missing, has the wrong type, or
        asks for something that this architecture does not do here (scaled RoPE, sliding windows, biases).
        """
        path = Path(directory) / "config.json"
        return cls.of(_read(path), str(path), _generation(path))

    @classmethod
    def of(cls, values: Mapping[str, object], name: str, generation: _Source | None = None) -> Qwen3Config:
        """The same from the contents of a config.json; `name`: for refusals."""
        source = _Source(values, name)
        source.only("model_type", "qwen3")
        source.only("hidden_act", "silu", default="silu")
        source.only("attention_bias", False, default=False)
        source.only("use_sliding_window", False, default=False)
        heads = source.positive("num_attention_heads")
        kv_heads = source.positive("num_key_value_heads", default=heads)
        if heads % kv_heads:
            raise source.wrong(
                "num_key_value_heads", f"{kv_heads} does not divide num_attention_heads={heads}"
            )
        hidden = source.positive("hidden_size")
        if "head_dim" not in source.values and hidden % heads:
            raise source.wrong(
                "head_dim", f"missing, and hidden_size={hidden} is not a multiple of {heads} heads"
            )
        head_dim = source.positive("head_dim", default=hidden // heads)
        if head_dim % 2:
            raise source.wrong("head_dim", f"{head_dim} is odd, RoPE turns pairs of elements")
        return cls(
            vocab_size=source.positive("vocab_size"),
            hidden_size=hidden,
            intermediate_size=source.positive("intermediate_size"),
            num_hidden_layers=source.positive("num_hidden_layers", most=MAX_LAYERS),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=source.get("rms_norm_eps", float, 1e-6),
            rope_theta=source.rope_theta(),
            tie_word_embeddings=source.get("tie_word_embeddings", bool, False),
            max_position_embeddings=source.positive("max_position_embeddings"),
            initializer_range=source.get("initializer_range", float, 0.02),
            eos_token_ids=_eos_token_ids(source, generation),
        )


class _Source:
    """The contents of one JSON file, with errors that name the place."""

    def __init__(self, values: Mapping[str, object], name: str) -> None:
        self.values, self.name = values, name

    def wrong(self, key: str, what: str) -> BadCheckpoint:
        return BadCheckpoint(f"{self.name}: {key}: {what}")

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise self.wrong(key, f"missing, expected {kind.__name__}")
            return default
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.wrong(key, f"expected {kind.__name__}, got {value!r}")
        return value

    def positive(self, key: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        value = self.get(key, int, default)
        if not 0 < value <= most:
            raise self.wrong(key, f"expected a number from 1 to {most}, got {value}")
        return value

    def only(self, key: str, supported: T, default: T | None = None) -> None:
        value = self.get(key, type(supported), default)
        if value != supported:
            raise self.wrong(key, f"{value!r} is not supported by the builtin engine, only {supported!r} is")

    def rope_theta(self) -> float:
        """The base of RoPE, from either form of the configuration; refuses scaled RoPE."""
        for key in ("rope_parameters", "rope_scaling"):
            rope = self.values.get(key)
            if rope is None:
                continue
            if not isinstance(rope, dict):
                raise self.wrong(key, f"expected an object, got {rope!r}")
            kind = rope.get("rope_type", rope.get("type", "default"))
            if kind != "default":
                raise self.wrong(f"{key}.rope_type", f"{kind!r} is not supported, only 'default' is")
            theta = rope.get("rope_theta")
            if theta is not None:
                if type(theta) not in (int, float) or theta <= 0:
                    raise self.wrong(f"{key}.rope_theta", f"expected a positive number, got {theta!r}")
                return float(theta)
        theta = self.get("rope_theta", float, 10_000.0)  # the default of Qwen3Config in transformers
        if theta <= 0:
            raise self.wrong("rope_theta", f"expected a positive number, got {theta!r}")
        return theta


def _read(path: Path) -> dict[str, object]:
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadCheckpoint(
            f"{path} is missing: give a Hugging Face checkpoint directory (config.json, *.safetensors, "
            "tokenizer.json), or copy the whole directory again"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path} cannot be read as JSON ({error}): copy the checkpoint again") from error
    if not isinstance(values, dict):
        raise BadCheckpoint(f"{path} holds a {type(values).__name__}, expected a JSON object")
    return values


def _generation(config: Path) -> _Source | None:
    path = config.with_name("generation_config.json")
    return _Source(_read(path), str(path)) if path.exists() else None


def _eos_token_ids(config: _Source, generation: _Source | None) -> tuple[int, ...]:
    for source in ([generation] if generation is not None else []) + [config]:
        value = source.values.get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(type(one) is int and one >= 0 for one in ids):
            raise source.wrong("eos_token_id", f"expected token ids, got {value!r}")
        return tuple(ids)
    return ()
