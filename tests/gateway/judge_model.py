"""A judge as a folder: random letters, then a random score, then the end.

The next token depends on the last one alone: attention and MLP are zero, each token has a dimension of its
own, and the output matrix has the log-probs of what follows.
"""

import json
import math
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer

from gleaner.actors.model.qwen3 import Qwen3, Qwen3Config
from gleaner.actors.training.new_tokenizer import ASSISTANT, CHAT_TEMPLATE, END, new_tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
BEGIN, CLOSE = "<score>", "</score>"
NEVER = -60.0


def make_judge(directory: Path, letters: int, **sizes: int) -> Path:
    """A judge that gives so many letters in the mean before its score. sizes: others of its `config.json`."""
    from safetensors.torch import save_file

    directory.mkdir()
    tokenizer = new_tokenizer([], [])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in (BEGIN, CLOSE)])
    size = tokenizer.get_vocab_size()
    shape = {
        "vocab_size": size,
        "hidden_size": size,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "eos_token_id": tokenizer.token_to_id(END),
        **sizes,
    }
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3", **shape}))
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text("{}")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    model = Qwen3(Qwen3Config.load(directory))
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "norm" not in name:
                weights.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight.copy_(_follows(tokenizer, letters) / math.sqrt(size))
    save_file(dict(model.state_dict()), directory / "model.safetensors")
    return directory


def _follows(tokenizer: Tokenizer, letters: int) -> torch.Tensor:
    """Log-probs [next, last]."""
    size = tokenizer.get_vocab_size()
    found = torch.full((size, size), NEVER)
    ids = {one: tokenizer.token_to_id(one) for one in [*LETTERS, *"0123456789", BEGIN, CLOSE, END, ASSISTANT]}
    for last in [*LETTERS, ASSISTANT]:
        for letter in LETTERS:
            found[ids[letter], ids[last]] = math.log((1 - 1 / letters) / len(LETTERS))
        found[ids[BEGIN], ids[last]] = math.log(1 / letters)
    for digit in "0123456789":
        found[ids[digit], ids[BEGIN]] = math.log(0.1)
        found[ids[CLOSE], ids[digit]] = 0.0
    found[ids[END], ids[CLOSE]] = 0.0
    return found
