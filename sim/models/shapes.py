"""Sizes of transformer models, and the parameters, bytes and FLOPs of a size.

Owns the look-up in `shapes.toml` and the arithmetic of a dense Qwen3. Knows no device.
"""

from functools import cache
from importlib.resources import files

import msgspec

from gleaner.configs.schema import Model


class UnknownModel(ValueError):
    """No model of this name is described; the text names those that are."""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dense decoder of the Qwen3 architecture; sizes in elements."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    bytes_per_weight: int = 2

    @staticmethod
    def of(model: Model, vocabulary: int) -> "ModelShape":
        """The shape that a job's settings describe; the builtin engine computes in float32."""
        return ModelShape(
            layers=model.layers,
            hidden=model.hidden_size,
            heads=model.heads,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            intermediate=model.intermediate_size,
            vocabulary=vocabulary,
            tied=True,
            bytes_per_weight=4,
        )

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer: attention, MLP and the four norms."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden + 2 * self.head_dim

    @property
    def embedding_parameters(self) -> int:
        """Parameters of one of the two matrices that are as wide as the vocabulary."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All of them; a tied matrix counts once."""
        ends = self.embedding_parameters * (1 if self.tied else 2)
        return self.layers * self.layer_parameters + ends + self.hidden

    @property
    def weight_bytes(self) -> int:
        """Bytes of the whole model, as published, pulled and loaded."""
        return self.parameters * self.bytes_per_weight

    @property
    def active_parameters(self) -> int:
        """Parameters by which a token is multiplied. Only one row of the input embedding is read, which is
        negligible."""
        return self.layers * self.layer_parameters + self.embedding_parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers, over all devices."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.bytes_per_weight

    def kv_bytes_per_token_and_device(self, tp: int) -> float:
        """The share of one of `tp` devices; more devices than heads of keys hold copies."""
        heads = max(1.0, self.kv_heads / tp)
        return self.layers * 2 * heads * self.head_dim * self.bytes_per_weight

    @property
    def flops_per_token(self) -> float:
        """Multiplications and additions of one token's forward pass, without attention over its context."""
        return 2.0 * self.active_parameters

    @property
    def attention_flops_per_pair(self) -> float:
        """FLOPs of one token attending to one other: scores and weighted values, in all layers."""
        return 4.0 * self.layers * self.heads * self.head_dim


@cache
def _shapes() -> dict[str, ModelShape]:
    raw = files(__package__).joinpath("shapes.toml").read_bytes()
    return msgspec.toml.decode(raw, type=dict[str, ModelShape])


def model_names() -> list[str]:
    """Every model that is described, in the order of the file."""
    return list(_shapes())


def model_shape(name: str) -> ModelShape:
    """The sizes of a model. Raises `UnknownModel`."""
    try:
        return _shapes()[name]
    except KeyError:
        raise UnknownModel(f"{name!r} is no known model; known are {', '.join(model_names())}") from None
