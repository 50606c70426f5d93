"""Tokens a second of the builtin engine with and without `job.exact`.

On one thread. The model has the dimensions of the quickstart, random weights and no stop token, so that both
make the same number of tokens. Both run in one process and take turns, and the best of the rounds counts:
other work on the host only slows them.
"""

import time
from collections.abc import Callable

import torch

from bench.table import Row, run
from gleaner.actors.engine.builtin.engine import BuiltinEngine
from gleaner.actors.engine.builtin.engine_size import EngineSize
from gleaner.actors.engine.worker.engine_port import Assignment
from gleaner.actors.model.qwen3 import Qwen3, Qwen3Config
from gleaner.configs.schema import Model

ROUNDS = 5
SLOTS = 32
PROMPT_TOKENS = 32
NEW_TOKENS = 64
CUT_AT = 48  # of the new tokens, in the work that continues another instance's requests
GROUP = 8  # samples of a prompt


def _model() -> Qwen3:
    sizes = Model()
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return Qwen3(config).requires_grad_(False)


def _work(count: int, begun: int) -> list[Assignment]:
    """Requests of which `begun` tokens exist already."""
    return [
        Assignment(
            ticket=index,
            prompt=[(index // GROUP * 7 + place) % 500 for place in range(PROMPT_TOKENS)],
            prefix=[(index * 11 + place) % 500 for place in range(begun)],
            seed=index,
            max_new_tokens=NEW_TOKENS,
        )
        for index in range(count)
    ]


def _rate(engine: BuiltinEngine, work: list[Assignment]) -> float:
    """Tokens a second, the filling of contexts included."""
    tokens = 0
    began = time.perf_counter()
    engine.add(work)
    while not engine.idle:
        tokens += len(engine.step())
    return tokens / (time.perf_counter() - began)


def measure() -> list[Row]:
    """One row for each kind of work; the peer is the engine without `job.exact`."""
    kinds: dict[str, Callable[[], list[Assignment]]] = {
        "decode, 32 of 32 slots": lambda: _work(2 * SLOTS, 0),
        "decode, 4 of 32 slots (the tail of a step)": lambda: _work(4, 0),
        "go on with what others began, 32 of 32 slots": lambda: _work(SLOTS, CUT_AT),
    }
    ways = {
        exact: BuiltinEngine(
            _model(), EngineSize(slots=SLOTS, max_tokens=128 + NEW_TOKENS), eos_token_ids=[], exact=exact
        )
        for exact in (True, False)
    }
    best = {(kind, exact): 0.0 for kind in kinds for exact in ways}
    for _ in range(ROUNDS):
        for kind, work in kinds.items():
            for exact, engine in ways.items():
                best[kind, exact] = max(best[kind, exact], _rate(engine, work()))
    return [Row(kind, "tokens/s", best[kind, True], "without", best[kind, False]) for kind in kinds]


if __name__ == "__main__":
    run("exact_decoding", "Exact decoding against plain decoding, builtin engine, one thread", measure)
