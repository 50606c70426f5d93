"""A small model whose responses reach their length limit, as a folder in the Hugging Face format."""

import json
from collections.abc import Callable
from pathlib import Path

import torch

from gleaner.actors.model.qwen3 import Qwen3, Qwen3Config
from gleaner.actors.training.new_tokenizer import CHAT_TEMPLATE, new_tokenizer

MakeModel = Callable[[str, int], Path]
"""A folder of this name with random weights of this seed; the same one when it is asked for again."""


def make_folder(directory: Path, seed: int) -> Path:
    """Write the model with random weights of this seed."""
    from safetensors.torch import save_file

    directory.mkdir()
    tokenizer = new_tokenizer([], [])
    shape = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3", **shape}))
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text("{}")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    torch.manual_seed(seed)
    model = Qwen3(Qwen3Config.load(directory))
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() == 2:
                weights.mul_(8)  # so far apart that responses vary and no rounding changes them
    save_file(
        {key: tensor.clone() for key, tensor in model.state_dict().items()}, directory / "model.safetensors"
    )
    return directory
