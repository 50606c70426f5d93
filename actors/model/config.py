"""Model config that travels with the weights: Hugging Face or `Qwen3Config`.

It is a checkpoint's config.json, or a `Qwen3Config` from the job's own trainer. Owns the distinction of the
two, and the parts that each engine needs. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from gleaner.actors.model.qwen3_config import BadCheckpoint, Qwen3Config

TYPE = "model_type"
"""The key that every config.json has, and a `Qwen3Config` has not."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The fields that are used of a model of any architecture."""

    eos_token_ids: tuple[int, ...]
    tied: bool


def of_checkpoint(config: bytes) -> Mapping[str, object] | None:
    """config.json as it is; None if it is a `Qwen3Config`. Raises BadCheckpoint."""
    try:
        values = json.loads(config)
    except (ValueError, RecursionError) as problem:
        raise BadCheckpoint(f"the model's config is no JSON: {problem}") from problem
    if not isinstance(values, dict):
        raise BadCheckpoint(f"the model's config is a {type(values).__name__}, expected an object")
    return values if TYPE in values else None


def qwen3(config: bytes) -> Qwen3Config:
    """The config for the builtin engine, which has this architecture alone. Raises BadCheckpoint."""
    values = of_checkpoint(config)
    if values is not None:
        return Qwen3Config.of(values, "the published config.json")
    try:
        return msgspec.json.decode(config, type=Qwen3Config)
    except msgspec.MsgspecError as problem:
        raise BadCheckpoint(f"the model's config lacks what an engine needs: {problem}") from problem


def facts(config: bytes) -> Facts:
    """Raises BadCheckpoint."""
    values = of_checkpoint(config)
    if values is None:
        own = qwen3(config)
        return Facts(own.eos_token_ids, own.tie_word_embeddings)
    given = values.get("eos_token_id")
    ids = given if isinstance(given, list) else [] if given is None else [given]
    return Facts(tuple(one for one in ids if type(one) is int), bool(values.get("tie_word_embeddings", True)))
