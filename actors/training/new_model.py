"""New small Qwen3 checkpoint with a warm start, which RL can improve.

Owns the random weights, the supervised warm start, and the files of the new directory. Does not own the
demonstrations (`demonstrations`) or the tokenizer (`new_tokenizer`). Imports `transformers`, which writes the
checkpoint, so no process of a run imports this module.

The same spec, problems and seed give the same bits, on the same machine with the same number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from gleaner.actors.model.checkpoint import load_checkpoint, save_checkpoint
from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.reward.prompts import Prompts
from gleaner.actors.reward.source import Source
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
        drawn, whole = Path(work) / "drawn", Path(work) / "whole"
        _write_random(drawn, spec, _tokenizer_for(problems, rng), seed)
        model = load_checkpoint(drawn)
        _warm_start(model, spec.warm_start, _Demonstrations(problems, drawn, rng), progress)
        save_checkpoint(model.state_dict(), whole, like=drawn)
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


def _write_random(directory: Path, spec: Model, tokenizer: Tokenizer, seed: int) -> None:
    """A checkpoint with random weights, as transformers draws and writes it."""
    end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=LONGEST,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=True, eos_token_id=end, pad_token_id=pad)
    disable_progress_bar()  # of transformers, about one small file: the caller shows progress
    model.save_pretrained(directory)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        model_max_length=LONGEST,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(directory)


def _warm_start(
    model: Qwen3,
    settings: WarmStart,
    demonstrations: _Demonstrations,
    progress: Callable[[WarmStartProgress], None],
) -> None:
    """Imitate demonstrations: cross-entropy over response tokens, AdamW."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    for step in range(settings.steps):
        rise = min(1.0, (step + 1) / WARM_UP_STEPS)
        optimizer.param_groups[0]["lr"] = (
            settings.learning_rate * rise * max(FINAL_RATE, 1 - step / settings.steps)
        )
        samples = demonstrations.take(settings.batch)
        tokens = sum(len(sample.response) for sample in samples)
        optimizer.zero_grad()
        loss = 0.0
        for part in by_length(samples, BATCH_TOKENS):
            share = -token_logprobs(model, collate(part)).sum() / tokens
            share.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            loss += share.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        progress(WarmStartProgress(step + 1, settings.steps, loss))
