"""New small Qwen3 checkpoint with a warm start, which RL can improve.

Owns the random weights, the supervised warm start, and the files of the new directory. Does not own the
demonstrations (`demonstrations`) or the tokenizer (`new_tokenizer`). The weights and the files are those that
`transformers` 5 draws and writes, without its import, which takes seconds.

The same spec, problems and seed give the same bits, on the same machine with the same number of threads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from tokenizers import Tokenizer, processors

from gleaner.actors.model.checkpoint import save_checkpoint
from gleaner.actors.model.qwen3 import Qwen3, Qwen3Config
from gleaner.actors.reward.prompts import Prompts
from gleaner.actors.reward.source import Source
from gleaner.actors.training.adamw import AdamW
from gleaner.actors.training.demonstrations import demonstrate
from gleaner.actors.training.logprobs import token_logprobs
from gleaner.actors.training.new_tokenizer import CHAT_TEMPLATE, END, PAD, UNKNOWN, new_tokenizer
from gleaner.actors.training.sample import Sample
from gleaner.actors.training.samples import by_length, collate
from gleaner.configs.schema import Model, WarmStart

LONGEST = 512
"""Positions of a made model, in tokens; RoPE sets no bound of its own."""

ROPE_THETA = 30.0
"""Base of the rotary angles. Qwen3 has 10^6 for 32 k positions; a model that never sees 100 learns to find
positions in half the steps, and from more seeds, where most of its angles turn within that."""

TOKENIZER_PROBLEMS = 256
"""Problems that the tokenizer is made from: enough that no word is in all of them by chance."""

BATCH_TOKENS = 1024
"""Padded tokens of one pass; small, so that short and long demonstrations do not share one."""

MAX_GRAD_NORM = 1.0
WARM_UP_STEPS = 20
FINAL_RATE = 0.05
"""The learning rate rises over the warm-up steps, then falls in a line to this share of its peak."""


@dataclass(frozen=True, slots=True)
class WarmStartProgress:
    """Progress of the warm start: optimizer steps done and due, mean loss of the last batch, nats a token."""

    step: int
    steps: int
    loss: float


def new_model(
    out_dir: str | Path,
    spec: Model,
    problems: Source,
    seed: int,
    progress: Callable[[WarmStartProgress], None] = lambda _: None,
) -> None:
    """Write a complete Hugging Face checkpoint directory: Qwen3 weights, tokenizer, chat template.

    `spec.path` is ignored; the warm start uses the warm-up split of `problems`. The directory appears under
    its name when it is whole. Torch's random state is left as it was. Raises `FileExistsError` if something
    is at `out_dir` already, `OSError` if it cannot be written.
    """
    out_dir = Path(out_dir)
    if out_dir.exists():
        raise FileExistsError(f"{out_dir} exists: choose another directory, or remove it")
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    rng = Random(seed)
    with TemporaryDirectory(dir=out_dir.parent, prefix=f".{out_dir.name}-") as work:
        files, whole = Path(work) / "files", Path(work) / "whole"
        tokenizer = _tokenizer_for(problems, rng)
        _write_files(files, spec, tokenizer)
        model = _drawn(Qwen3Config.load(files), tokenizer, seed)
        _warm_start(model, spec.warm_start, _Demonstrations(problems, files, rng), progress)
        save_checkpoint(model.state_dict(), whole, like=files)
        whole.rename(out_dir)


class _Demonstrations:
    """The warm-up split as samples, in the order of its indices."""

    def __init__(self, problems: Source, directory: Path, rng: Random) -> None:
        self._problems = problems
        self._prompts = Prompts(directory)
        self._rng = rng
        self._next = 0

    def take(self, count: int) -> list[Sample]:
        return [self._sample() for _ in range(count)]

    def _sample(self) -> Sample:
        problem = self._problems.problem("warmup", self._next)
        self._next += 1
        response = self._prompts.encode_text(demonstrate(self._problems.name, problem, self._rng) + END)
        return Sample(self._prompts.encode(problem.question), response, [0.0] * len(response), 1.0)


def _tokenizer_for(problems: Source, rng: Random) -> Tokenizer:
    some = [problems.problem("warmup", index) for index in range(TOKENIZER_PROBLEMS)]
    answers = [demonstrate(problems.name, problem, rng) for problem in some]
    return new_tokenizer([problem.question for problem in some], answers)


def _drawn(config: Qwen3Config, tokenizer: Tokenizer, seed: int) -> Qwen3:
    """A model with random weights, those that transformers draws from this seed."""
    pad = tokenizer.token_to_id(PAD)
    assert pad is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3(config)
    with torch.no_grad():
        model.model.embed_tokens.weight[pad] = 0.0
    return model


def _write_files(directory: Path, spec: Model, tokenizer: Tokenizer) -> None:
    """The files of a checkpoint beside its weights."""
    end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "float32",
        "eos_token_id": end,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "hidden_size": spec.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": spec.intermediate_size,
        "layer_types": ["full_attention"] * spec.layers,
        "max_position_embeddings": LONGEST,
        "max_window_layers": 28,
        "model_type": "qwen3",
        "num_attention_heads": spec.heads,
        "num_hidden_layers": spec.layers,
        "num_key_value_heads": spec.kv_heads,
        "pad_token_id": pad,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": ROPE_THETA, "rope_type": "default"},
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": tokenizer.get_vocab_size(),
    }
    generation = {"do_sample": True, "eos_token_id": end, "pad_token_id": pad}
    tokenizing = {
        "backend": "tokenizers",
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "model_max_length": LONGEST,
        "pad_token": PAD,
        "tokenizer_class": "TokenizersBackend",
        "unk_token": UNKNOWN,
    }
    directory.mkdir()
    _write(directory / "config.json", config)
    _write(directory / "generation_config.json", generation)
    _write(directory / "tokenizer_config.json", tokenizing)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def _write(file: Path, values: Mapping[str, object]) -> None:
    file.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _warm_start(
    model: Qwen3,
    settings: WarmStart,
    demonstrations: _Demonstrations,
    progress: Callable[[WarmStartProgress], None],
) -> None:
    """Imitate demonstrations: cross-entropy over response tokens, AdamW."""
    weights = dict(model.named_parameters())
    optimizer = AdamW(weights, settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(settings.steps):
        rise = min(1.0, (step + 1) / WARM_UP_STEPS)
        optimizer.set_learning_rate(
            settings.learning_rate * rise * max(FINAL_RATE, 1 - step / settings.steps)
        )
        samples = demonstrations.take(settings.batch)
        tokens = sum(len(sample.response) for sample in samples)
        model.zero_grad()
        loss = 0.0
        for part in by_length(samples, BATCH_TOKENS):
            share = -token_logprobs(model, collate(part)).sum() / tokens
            share.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            loss += share.item()
        torch.nn.utils.clip_grad_norm_(weights.values(), MAX_GRAD_NORM)
        optimizer.step({name: weight.grad for name, weight in weights.items()})
        progress(WarmStartProgress(step + 1, settings.steps, loss))
