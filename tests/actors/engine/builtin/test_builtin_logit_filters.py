"""Logit filters of sampling: top-k, top-p, min-p and forbidden ends."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.engine.builtin.engine import BuiltinEngine
from gleaner.actors.engine.builtin.engine_size import EngineSize
from gleaner.actors.engine.builtin.logit_filters import forbid, restrict
from gleaner.actors.engine.worker.engine_port import Assignment, CannotServe
from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.model.qwen3_config import Qwen3Config
from gleaner.actors.protocol.sampling_params import Sampling

MODEL = Qwen3Config(
    vocab_size=24,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    intermediate_size=16,
)
P = torch.tensor([[0.1, 0.4, 0.2, 0.3]])


def kept(sampling: Sampling) -> list[int]:
    return torch.nonzero(restrict(P, {0: sampling})[0]).flatten().tolist()


def test_likeliest_tokens_are_kept() -> None:
    assert kept(Sampling(top_k=2)) == [1, 3]
    assert kept(Sampling(top_p=0.65)) == [1, 3]
    assert kept(Sampling(top_p=0.71)) == [1, 2, 3]
    assert kept(Sampling(min_p=0.5)) == [1, 2, 3]
    assert kept(Sampling(top_k=3, top_p=0.3)) == [1]
    assert kept(Sampling()) == [0, 1, 2, 3]


@given(
    st.lists(st.floats(0.0, 1.0), min_size=2, max_size=12).filter(lambda p: sum(p) > 0.01),
    st.integers(1, 12),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
)
def test_filters_keep_the_most_likely_tokens(
    weights: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    p = torch.tensor([weights]) / sum(weights)
    left = restrict(p, {0: Sampling(top_k=top_k, top_p=top_p, min_p=min_p)})[0]
    stays = left > 0
    assert bool(stays.any())
    assert int(stays.sum()) <= top_k
    assert torch.equal(left[stays], p[0][stays])
    if bool((~stays).any()):
        assert float(p[0][stays].min()) >= float(p[0][~stays].max()) - 1e-7


def test_only_rows_that_ask_are_filtered() -> None:
    two = P.repeat(2, 1)
    assert torch.equal(restrict(two, {1: Sampling(top_k=1)})[0], P[0])
    assert torch.equal(forbid(two, {1: [3]})[0], P[0])
    assert forbid(two, {1: [3]})[1, 3] == -torch.inf


def responses(*asked: Sampling | None, temperature: float = 1.0, prefix: int = 0) -> list[list[int]]:
    """The responses of the engine to one prompt and seed, decoded together."""
    torch.manual_seed(5)
    engine = BuiltinEngine(Qwen3(MODEL), EngineSize(slots=8, max_tokens=64), eos_token_ids=[0])
    made: dict[int, list[int]] = {n: [] for n in range(len(asked))}
    engine.add(
        Assignment(ticket=n, prompt=[3, 5], seed=11, max_new_tokens=20, temperature=temperature, sampling=one)
        for n, one in enumerate(asked)
    )
    while not engine.idle:
        rows = engine.step()
        for ticket, token in zip(rows.tickets.tolist(), rows.tokens.tolist(), strict=True):
            made[ticket].append(token)
    return list(made.values())


def test_engine_samples_as_each_request_asks() -> None:
    plain, top, greedyish, ignoring, long = responses(
        None,
        Sampling(top_k=3),
        Sampling(top_k=1),
        Sampling(ignore_eos=True),
        Sampling(min_new_tokens=15),
    )
    assert responses(None) == [plain], "filters of others do not change a plain request"
    assert responses(None, temperature=0.0) == [greedyish]
    assert top != plain
    assert len(ignoring) == 20
    assert len(long) >= 15
    assert 0 not in long[:15]
    stop = ignoring[4]
    stopped = responses(Sampling(ignore_eos=True, stop_token_ids=(stop,)))[0]
    assert stopped == ignoring[: ignoring.index(stop) + 1]


def test_penalty_is_refused_not_ignored() -> None:
    with pytest.raises(CannotServe, match="penalties"):
        responses(Sampling(repetition_penalty=1.1))
