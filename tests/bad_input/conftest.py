"""Fixtures of the tests of bad input: a tiny checkpoint, and the real command line."""

import json
import sys
from pathlib import Path

import pytest
import torch
from tiny_command import Refusal, Rlctl

from gleaner.actors.model.qwen3 import Qwen3, Qwen3Config
from gleaner.actors.training.new_tokenizer import CHAT_TEMPLATE, new_tokenizer
from gleaner.rlctl.__main__ import main

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))  # `real_runs`


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with its tokenizer, in the Hugging Face format."""
    from safetensors.torch import save_file

    directory = tmp_path_factory.mktemp("checkpoint") / "tiny"
    directory.mkdir()
    tokenizer = new_tokenizer([], [])
    shape = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3", "eos_token_id": 4, **shape}))
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text("{}")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    torch.manual_seed(0)
    weights = Qwen3(Qwen3Config.load(directory)).state_dict()
    save_file({name: tensor.clone() for name, tensor in weights.items()}, directory / "model.safetensors")
    return directory


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Rlctl:
    """`rlctl run` with bad input: its exit code and its errors. It leaves no folder behind."""

    def run(*arguments: str) -> Refusal:
        runs_dir = tmp_path / "runs"
        code = main(["run", "--runs-dir", str(runs_dir), *arguments])
        errors = capsys.readouterr().err
        assert errors, "it was not refused"
        assert all(line.startswith("error: ") for line in errors.splitlines()), errors
        assert not runs_dir.exists() or list(runs_dir.iterdir()) == []
        return code, errors

    return run
