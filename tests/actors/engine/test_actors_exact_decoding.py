"""Exact decoding: the bits of a request depend neither on its batch nor on moves."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gleaner.actors.engine.builtin.engine import BuiltinEngine
from gleaner.actors.engine.builtin.engine_size import EngineSize
from gleaner.actors.engine.builtin.exact_decoder import NARROWER, ROWS, ExactDecoder, NotExact
from gleaner.actors.engine.worker.engine_port import Assignment
from gleaner.actors.model.qwen3 import Qwen3
from gleaner.transport.token_frame import Flag

MakeModel = Callable[..., Qwen3]
Row = tuple[int, float]  # token and log-prob: float32 widened, so equal numbers are equal bits

COUNT = 48
SLOTS = (3, ROWS, ROWS + 8)


@dataclasses.dataclass
class Fleet:
    """Engines of several sizes with the same weights, and each request's rows when decoded alone."""

    engines: dict[int, BuiltinEngine]
    alone: list[list[Row]]


def request(index: int) -> Assignment:
    """Prompts from one token to three passes long, limits up to 24, every third at another temperature."""
    return Assignment(
        ticket=index,
        prompt=[(7 * index + j * j) % 95 for j in range(1 + (index * 13) % (2 * ROWS + 5))],
        seed=index,
        max_new_tokens=1 + (index * 11) % 24,
        temperature=0.7 if index % 3 == 0 else 1.0,
    )


def step(engine: BuiltinEngine, rows: dict[int, list[Row]], open_: dict[int, Assignment]) -> None:
    out = engine.step()
    for ticket, token, logprob, flags in zip(
        *(column.tolist() for column in (out.tickets, out.tokens, out.logprobs, out.flags)), strict=True
    ):
        if not flags & Flag.NO_TOKEN:
            rows[ticket].append((token, logprob))
        if flags & Flag.FINISHED:
            del open_[ticket]


@pytest.fixture(scope="module")
def fleet(make_model: MakeModel) -> Fleet:
    torch.set_num_threads(1)
    engines = {
        slots: BuiltinEngine(
            make_model(), EngineSize(slots=slots, max_tokens=120), eos_token_ids=[95], exact=True
        )
        for slots in SLOTS
    }
    alone = []
    for index in range(COUNT):
        rows: dict[int, list[Row]] = {index: []}
        open_ = {index: request(index)}
        engines[SLOTS[0]].add(open_.values())
        while open_:
            step(engines[SLOTS[0]], rows, open_)
        alone.append(rows[index])
    return Fleet(engines, alone)


@settings(max_examples=40)
@given(
    crowd=st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=COUNT, unique=True),
    stays=st.lists(st.tuples(st.sampled_from(SLOTS), st.integers(0, 6), st.integers(0, 6)), max_size=6),
    seed=st.integers(0, 2**32),
)
def test_request_gets_equal_bits_in_any_batch(
    fleet: Fleet, crowd: list[int], stays: list[tuple[int, int, int]], seed: int
) -> None:
    rng = random.Random(seed)
    rows: dict[int, list[Row]] = {index: [] for index in crowd}
    open_ = {index: request(index) for index in crowd}
    for slots, first_steps, steps in [*stays, (SLOTS[-1], 1, 1000)]:
        engine = fleet.engines[slots]
        moved = [
            dataclasses.replace(one, prefix=[token for token, _ in rows[one.ticket]])
            for one in open_.values()
        ]
        rng.shuffle(moved)
        half = rng.randint(0, len(moved))
        for some, count in ((moved[:half], first_steps), (moved[half:], steps)):
            engine.add(some)  # the others arrive while these are decoded
            for _ in range(count):
                if not engine.idle:
                    step(engine, rows, open_)
        engine.drain()
        while not engine.idle:
            step(engine, rows, open_)
    assert not open_
    assert rows == {index: fleet.alone[index] for index in crowd}


def test_exact_decoding_agrees_with_the_model(make_model: MakeModel, fleet: Fleet) -> None:
    model = make_model()
    for index in range(0, COUNT, 5):
        one, rows = request(index), fleet.alone[index]
        response = [token for token, _ in rows]
        with torch.no_grad():
            logits = model(torch.tensor([[*one.prompt, *response]]))[0, len(one.prompt) - 1 : -1]
        expected = (logits / one.temperature).log_softmax(-1).gather(1, torch.tensor(response).unsqueeze(1))
        assert [logprob for _, logprob in rows] == pytest.approx(expected.squeeze(1).tolist(), abs=1e-4)
    assert len({tuple(rows) for rows in fleet.alone}) == COUNT


def test_kernels_that_treat_rows_differently_are_refused(make_model: MakeModel) -> None:
    class Crooked(ExactDecoder):
        def _logits(self, x: Tensor) -> Tensor:
            logits = super()._logits(x)
            logits[-1] = logits[-1].nextafter(torch.tensor(torch.inf))
            return logits

    with pytest.raises(NotExact, match="differ between the rows"):
        Crooked(make_model(), 4, 64)


def test_inexact_narrower_pass_is_not_used(make_model: MakeModel) -> None:
    class Crooked(ExactDecoder):
        def _logits(self, x: Tensor) -> Tensor:
            logits = super()._logits(x)
            return logits.nextafter(torch.tensor(torch.inf)) if len(x) == NARROWER[0] else logits

    assert Crooked(make_model(), 4, 64).rows_of_pass(1) > NARROWER[0]
    assert ExactDecoder(make_model(), 4, 64).rows_of_pass(2 * ROWS) == ROWS


def test_kernels_whose_prefill_differs_from_decode_are_refused(make_model: MakeModel) -> None:
    class Crooked(ExactDecoder):
        def prefill(self, contexts: object, first_slot: int) -> None:
            super().prefill(contexts, first_slot)  # type: ignore[arg-type]
            self._values[-1, 0, 0, 1, 0] += 1e-6

    with pytest.raises(NotExact, match="other keys and values"):
        Crooked(make_model(), 4, 64)


def test_exact_engine_on_several_threads_is_refused(make_model: MakeModel) -> None:
    with pytest.raises(ValueError, match="one thread"):
        BuiltinEngine(
            make_model(), EngineSize(slots=4, max_tokens=64, threads=2), eos_token_ids=[], exact=True
        )
