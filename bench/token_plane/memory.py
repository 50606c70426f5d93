"""Memory of the manager's state per request in flight and per token (tracemalloc).

In this process: the state is the manager's own (`gleaner.actors.rollout.state.state`), fed with the events
that a manager journals; no other part of the manager grows with the requests.
"""

import gc
import tracemalloc
from array import array
from dataclasses import dataclass

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.rollout.state.events import Dispatched, FrameLogged, InstanceJoined
from gleaner.actors.rollout.state.state import RolloutState

PROMPT_TOKENS = 64
SAMPLES = 8  # of a prompt
BATCH = 8_000  # requests submitted together
TICKETS = 2_000  # requests that an instance has
ANSWER_TOKENS = 256


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes: of `requests` in flight without an answer, and of each token that is then collected. `refused`:
    why so many requests are refused, "" where they are accepted."""

    requests: int
    bytes_per_request: float = float("nan")
    bytes_per_token: float = float("nan")
    refused: str = ""


def measure(requests: int) -> MemoryUse:
    """See `MemoryUse`."""
    gc.collect()
    tracemalloc.start()
    try:
        before = _now()
        state = RolloutState()
        refused = _submit(state, requests)
        if refused:
            return MemoryUse(requests, refused=refused)
        instances = _dispatch(state)
        empty = _now()
        tokens = _collect(state, instances)
        full = _now()
    finally:
        tracemalloc.stop()
    return MemoryUse(requests, (empty - before) / requests, (full - empty) / tokens)


def _now() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _submit(state: RolloutState, requests: int) -> str:
    left, batch = requests, 0
    while left:
        count = min(left, BATCH)
        prompts = tuple(
            Prompt(
                split="train",
                index=number,
                tokens=tuple((number * 977 + place * 31) % 150_000 for place in range(PROMPT_TOKENS)),
                seeds=tuple(range(number * SAMPLES, number * SAMPLES + min(SAMPLES, count - start))),
            )
            for number, start in enumerate(range(0, count, SAMPLES))
        )
        event = BatchSubmitted(batch=f"batch-{batch}", version=1, prompts=prompts, max_new_tokens=4096)
        if refusal := state.refusal(event):
            return refusal
        state.apply(event)
        left, batch = left - count, batch + 1
    return ""


def _dispatch(state: RolloutState) -> dict[str, tuple[int, ...]]:
    """Every request is dispatched to an instance: the tickets of each."""
    waiting = [log.id for log in state.log.queued()]
    given = {}
    for number, start in enumerate(range(0, len(waiting), TICKETS)):
        name, some = f"spot-{number}/engine", tuple(waiting[start : start + TICKETS])
        given[name] = tickets = tuple(range(1, len(some) + 1))
        state.apply(InstanceJoined(instance=name, incarnation=1))
        state.apply(Dispatched(instance=name, incarnation=1, version=1, tickets=tickets, requests=some))
    return given


def _collect(state: RolloutState, instances: dict[str, tuple[int, ...]]) -> int:
    """Every request gets `ANSWER_TOKENS`; returns the number of tokens."""
    for seq in range(1, ANSWER_TOKENS + 1):
        for name, tickets in instances.items():
            count = len(tickets)
            state.apply(
                FrameLogged(
                    instance=name,
                    incarnation=1,
                    seq=seq,
                    tickets=array("I", tickets).tobytes(),
                    tokens=array("I", [(seq * 977) % 150_000] * count).tobytes(),
                    logprobs=array("f", [-0.5] * count).tobytes(),
                    flags=bytes(count),
                )
            )
    collected = state.counters.tokens_collected
    assert collected == ANSWER_TOKENS * sum(map(len, instances.values())), "rows were refused"
    return collected
