"""A quickly made model folder, and servers of it as processes."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType

import torch
from aiohttp.test_utils import TestClient
from safetensors.torch import save_file

from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.model.qwen3_config import Qwen3Config
from gleaner.actors.training.new_tokenizer import CHAT_TEMPLATE, END, new_tokenizer

Client = TestClient
Serve = Callable[..., Awaitable[Client]]
"""Serves a model folder in this process, with these settings."""
WAIT_S = 60.0
SETTINGS = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "initializer_range": 0.15,
    "max_position_embeddings": 4096,
}


def make_folder(directory: Path, seed: int = 0, **settings: object) -> Path:
    """A random Qwen3 checkpoint with a tokenizer of characters."""
    directory.mkdir(parents=True)
    tokenizer = new_tokenizer(["Spell: the quick brown fox"], [])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    shape = (
        SETTINGS
        | {"vocab_size": tokenizer.get_vocab_size(), "eos_token_id": tokenizer.token_to_id(END)}
        | settings
    )
    (directory / "config.json").write_text(json.dumps(shape))
    torch.manual_seed(seed)
    model = Qwen3(Qwen3Config.load(directory))
    save_file(model.state_dict(), directory / "model.safetensors")
    return directory


class Process:
    """`rlctl engine serve` until its end; killed at the end of the block in any case."""

    def __init__(self, model: Path, *arguments: str) -> None:
        argv = [sys.executable, "-m", "gleaner.rlctl", "engine", "serve", "--model", str(model)]
        argv += ["--listen", "127.0.0.1:0", *arguments]
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split(" on ")[-1].strip()

    def __enter__(self) -> "Process":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def ends(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """The exit code and the text on standard error, after a signal."""
        if number is not None:
            self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, stderr

    def post(self, path: str, **body: object) -> "tuple[int, dict[str, object]]":
        """The status and the JSON of an answer."""
        data = json.dumps(body).encode()
        try:
            with urllib.request.urlopen(f"{self.url}{path}", data, timeout=WAIT_S) as answer:
                return answer.status, json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as refusal:
            return refusal.code, json.loads(refusal.read() or b"{}")
