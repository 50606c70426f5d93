"""Experts that a real SGLang server reports for a mixture-of-experts model, against the model itself."""

import time
from array import array
from pathlib import Path

import numpy as np
import pytest
import torch
from driven_host import DrivenHost
from engine_kinds import ONE_THREAD, SGLANG
from engines_world import START_S, Server
from numpy.typing import NDArray
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from gleaner.actors.engine.servers.factory import sglang_command, sglang_host
from gleaner.actors.engine.servers.server_process import ServerProcess, free_port
from gleaner.actors.engine.servers.sglang import environment
from gleaner.actors.engine.worker.expert_routing import ExpertPiece
from gleaner.actors.engine.worker.port import StepCommands
from gleaner.actors.protocol.experts import ExpertsWanted
from gleaner.actors.protocol.instances import Work
from gleaner.actors.protocol.sampling_params import Sampling
from gleaner.actors.protocol.weights import Fetched
from gleaner.actors.rollout.state.tickets import has_token

pytestmark = [pytest.mark.engines, pytest.mark.moe, pytest.mark.timeout(500)]

LAYERS, EACH, EXPERTS = 2, 2, 8
PROMPT = [5, 6, 7, 8]
NEW = 20


def made(folder: Path) -> Qwen3MoeForCausalLM:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=EXPERTS,
        num_experts_per_tok=EACH,
        norm_topk_prob=True,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        eos_token_id=1,
    )
    model = Qwen3MoeForCausalLM(config).float()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() == 2:
                weights.mul_(8)  # so far apart that no rounding changes the chosen experts
    model.save_pretrained(folder)
    return model


def routed(model: Qwen3MoeForCausalLM, tokens: list[int]) -> NDArray[np.int64]:
    """[tokens - 1, layers, experts of a token], ascending, as the model itself routes them."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens[:-1]]), output_router_logits=True).router_logits
    chosen = torch.stack([layer.reshape(-1, EXPERTS).topk(EACH).indices for layer in logits], dim=1)
    return np.sort(chosen.numpy(), axis=-1)


def work(ticket: int, prefix: list[int], new: int) -> Work:
    return Work(
        ticket=ticket,
        prompt=array("I", PROMPT).tobytes(),
        prefix=array("I", prefix).tobytes(),
        seed=0,
        max_new_tokens=new,
        temperature=0.0,
        sampling=Sampling(ignore_eos=True),
        experts=ExpertsWanted(follower="nobody", id=f"r{ticket}", attempt=1),
    )


def followed(host: DrivenHost, order: Work, abort_at: int = 0) -> tuple[list[int], ExpertPiece]:
    """Tokens of the request until its end or abort, and its experts."""
    orders, tokens = StepCommands(adds=[(0, [order])]), list[int]()
    until_s = time.monotonic() + 120
    while time.monotonic() < until_s:
        turn = host.turn(orders)
        assert not turn.refusals, turn.refusals
        orders = StepCommands()
        if turn.output is not None:
            rows = zip(turn.output.tokens.tolist(), turn.output.flags.tolist(), strict=True)
            tokens += [token for token, flags in rows if has_token(flags)]
        if abort_at and len(tokens) >= abort_at:
            orders.abort([order.ticket])
            abort_at = 0
        if turn.experts:
            return tokens, turn.experts[0]
    raise AssertionError(f"no experts after {len(tokens)} tokens")


def test_server_experts_equal_those_of_the_model(tmp_path: Path) -> None:
    if reason := SGLANG.why_not():
        pytest.skip(reason)
    model = made(tmp_path / "model")
    url = f"http://127.0.0.1:{free_port()}"
    config = SGLANG.settings(url)
    command = [*sglang_command(config, url, tmp_path / "model", "v1"), "--enable-return-routed-experts"]
    shim = Path(__file__).parent / "moe_on_cpu"
    process = ServerProcess(command, environment() | ONE_THREAD, tmp_path / "log", shim)
    host = DrivenHost(sglang_host(config))
    try:
        Server(url, process).wait(time.monotonic() + START_S)
        found = Fetched(
            version=0, root=b"r", path="", tensors=(), model_config=b"", pulled_bytes=0, seconds=0.0
        )
        host.turn(StepCommands(load=found))
        tokens, piece = followed(host, work(1, [], NEW))
        assert len(tokens) == NEW
        whole = routed(model, PROMPT + tokens)
        assert len(np.unique(whole)) > EXPERTS // 2, "the model uses most of them"
        assert np.array_equal(rows_of(piece), whole)

        again, piece = followed(host, work(2, tokens[:10], NEW))
        assert again == tokens[10:], "the request continues after a prefix"
        assert np.array_equal(rows_of(piece), whole), "the prefix has its experts too"

        cut, piece = followed(host, work(3, [], 90), abort_at=5)
        assert len(rows_of(piece)) >= len(PROMPT) + len(cut) - 1
        count = min(len(rows_of(piece)), len(whole))
        assert np.array_equal(rows_of(piece)[:count], whole[:count])
    finally:
        host.close()
        host.joined(10)
        process.kill()
        process.reap()


def rows_of(piece: ExpertPiece) -> NDArray[np.int64]:
    return np.sort(piece.rows.reshape(-1, LAYERS, EACH).astype(np.int64), axis=-1)
