"""`config.json` of a model, from which any engine builds the model. Pure."""

import json

from gleaner.actors.model.config import of_checkpoint, qwen3
from gleaner.actors.model.qwen3_config import BadCheckpoint, Qwen3Config

__all__ = ["BadCheckpoint", "hub_settings"]


def hub_settings(model_config: bytes, dtype: str) -> bytes:
    """`config.json` for a reader of the checkpoint: the published one, of any architecture, or a generated
    one. Raises BadCheckpoint."""
    values = of_checkpoint(model_config)
    if values is None:
        return _encoded(qwen3(model_config), dtype)
    return json.dumps({**values, "dtype": dtype, "torch_dtype": dtype}, indent=2).encode()


def _encoded(model: Qwen3Config, dtype: str) -> bytes:
    """The settings as transformers 5 writes them."""
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
    return json.dumps(told, indent=2).encode()
