"""Memory of the manager: 16 bytes per token and 1 KiB per request at most.

The limit per request is for requests in flight.
"""

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.rollout.state.admission import MAX_OPEN_TOKENS
from gleaner.actors.rollout.state.events import (
    BatchReleased,
    Dispatched,
    FrameLogged,
    GroupsTaken,
    InstanceJoined,
    Scored,
)
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.rollout.state.tickets import FINISHED, FIRST

SAMPLES = 8
INSTANCES = 20
PROMPT_TOKENS = 200


@contextmanager
def traced() -> Iterator[list[int]]:
    """The bytes allocated inside the context, once it has ended."""
    held: list[int] = []
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        yield held
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()


def submitted(requests: int) -> BatchSubmitted:
    rng = np.random.default_rng(1)
    prompts = tuple(
        Prompt(
            split="train",
            index=group,
            tokens=tuple(rng.integers(300, 150_000, PROMPT_TOKENS).tolist()),
            seeds=tuple(rng.integers(0, 1 << 62, SAMPLES).tolist()),
        )
        for group in range(requests // SAMPLES)
    )
    return BatchSubmitted(batch="b", version=0, prompts=prompts, max_new_tokens=8192)


def in_flight(requests: int, longest: int) -> RolloutState:
    """Every request is decoded; lengths are spread evenly up to `longest`."""
    state = RolloutState()
    state.apply(submitted(requests))
    ids, each = list(state.log.requests), requests // INSTANCES
    for number in range(INSTANCES):
        name, tickets = f"spot-{number}", np.arange(1, each + 1, dtype=np.uint32)
        state.apply(InstanceJoined(instance=name, incarnation=1))
        requests_here = tuple(ids[number * each : (number + 1) * each])
        state.apply(
            Dispatched(
                instance=name,
                incarnation=1,
                version=0,
                tickets=tuple(tickets.tolist()),
                requests=requests_here,
            )
        )
        lengths = np.linspace(1, longest, each).astype(int)
        steps = np.repeat(np.arange(longest), [(lengths > step).sum() for step in range(longest)])
        rows = np.concatenate([tickets[lengths > step] for step in range(longest)])
        state.apply(
            FrameLogged(
                instance=name,
                incarnation=1,
                seq=longest,
                frames=longest,
                tickets=rows.tobytes(),
                tokens=steps.astype(np.uint32).tobytes(),
                logprobs=steps.astype(np.float32).tobytes(),
                flags=np.where(steps == 0, FIRST, 0).astype(np.uint8).tobytes(),
            )
        )
    return state


@pytest.mark.parametrize(("requests", "longest"), [(600, 300), (2000, 60)])
def test_request_in_flight_stays_within_its_memory(requests: int, longest: int) -> None:
    in_flight(40, 10)  # makes what is made once, at the first use
    with traced() as held:
        state = in_flight(requests, longest)
    tokens = state.counters.tokens_collected
    assert tokens > requests * longest * 0.4
    assert state.refused == {}
    assert held[0] < 16 * tokens + 1024 * requests, f"{held[0] / requests:.0f} bytes a request"


def test_finished_request_leaves_memory_when_handed_out() -> None:
    state = in_flight(400, 100)
    for name, stream in list(state.streams.items()):
        rows = np.array(sorted(stream.tickets), np.uint32)
        none = np.zeros(len(rows), np.uint32)
        state.apply(
            FrameLogged(
                instance=name,
                incarnation=1,
                seq=stream.last_seq + 1,
                tickets=rows.tobytes(),
                tokens=none.tobytes(),
                logprobs=none.tobytes(),
                flags=bytes([FINISHED]) * len(rows),
            )
        )
    for request in list(state.log.requests):
        state.apply(Scored(request=request, score=1.0))
    collected = state.counters.tokens_collected
    assert state.log.columns.held() == collected
    half = tuple(range(0, len(state.log.batches["b"].groups), 2))
    state.apply(GroupsTaken(batch="b", taker=1, groups=half))
    assert state.log.columns.held() < 0.6 * collected
    assert state.log.columns.pages[0] < 0.6 * state.log.columns.pages[1]
    assert (state.tokens_lost, state.check()) == (0, [])
    state.apply(BatchReleased(batch="b"))
    assert state.log.columns.pages[0] == 0
    assert state.counters.tokens_released == collected
    assert (state.tokens_lost, state.check()) == (0, [])


def test_batch_with_too_many_tokens_is_refused() -> None:
    state, prompt = RolloutState(), Prompt(split="train", index=0, tokens=(1,), seeds=(1, 2))
    large = BatchSubmitted(batch="b", version=0, prompts=(prompt,), max_new_tokens=MAX_OPEN_TOKENS // 4)
    assert state.apply(large).refused == []
    assert state.apply(msgspec.structs.replace(large, batch="c")).refused == []
    refusal = state.refusal(msgspec.structs.replace(large, batch="d", max_new_tokens=1))
    assert refusal is not None
    assert "tokens" in refusal
