"""The projected peak of caches against its definition, and what it is a projection of."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollout_world import MAX_NEW, submission

from gleaner.actors.protocol.instances import RegisterInstance
from gleaner.actors.rollout.batches.cache_outlook import CacheOutlook, peak_tokens
from gleaner.actors.rollout.dispatch.remaining_length import RemainingLengths
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.events import Dispatched, InstanceJoined
from gleaner.actors.rollout.state.request_log import RequestState
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.rollout.state.token_log import Batch
from gleaner.supervisor import Address

requests = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 40)), max_size=12)


@given(requests)
def test_peak_of_caches_is_the_most_at_any_step(left: list[tuple[int, int]]) -> None:
    steps = range(1 + max((more for _, more in left), default=0))
    by_step = [sum(context + step for context, more in left if step <= more) for step in steps]
    context, more = (np.array([one[at] for one in left], np.float64) for at in (0, 1))
    assert peak_tokens(context, more) == max(by_step)


def instance(name: str, kind: str, cache_tokens: int, engines: int = 1) -> RegisterInstance:
    return RegisterInstance(
        instance=name,
        worker=Address(name=name, incarnation=4, endpoint="tcp://127.0.0.1:1"),
        kind=kind,
        slots=8,
        received=0,
        engines=engines,
        cache_tokens=cache_tokens,
    )


def outlook(cache_tokens: int, engines: int = 2) -> tuple[CacheOutlook, Batch]:
    """Two groups of two requests, of which an instance has one; the others wait for the reserved engines."""
    state = RolloutState()
    state.apply(submission(groups=2))
    state.apply(InstanceJoined(instance="spot", incarnation=4))
    first = next(iter(state.log.requests))
    state.apply(Dispatched(instance="spot", incarnation=4, version=1, tickets=(1,), requests=(first,)))
    instances = Instances()
    instances.register(instance("spot", "preemptible", 1), "a", 0.0)
    if engines:
        instances.register(instance("reserved", "reserved", cache_tokens, engines), "b", 0.0)
    journaled = cast("JournaledState", SimpleNamespace(state=state))
    return CacheOutlook(journaled, instances, RemainingLengths()), state.log.batches["step-1"]


PEAK = 3 * (3 + MAX_NEW // 2)
"""Tokens of the three requests that need a reserved engine: prompts of 3, and half of the limit expected."""


@pytest.mark.parametrize(
    ("cache_tokens", "engines", "fits"),
    [(PEAK, 2, True), (PEAK - 1, 2, False), (PEAK // 2 + 1, 4, True), (0, 2, True), (PEAK, 0, False)],
)
def test_half_of_the_caches_must_hold_what_is_not_elsewhere(
    cache_tokens: int, engines: int, fits: bool
) -> None:
    """No size of a cache: it is enough for its slots. Without a reserved engine there is no half."""
    view, batch = outlook(cache_tokens, engines)
    assert view.half_fits(batch) == fits


def test_ended_requests_need_no_engine() -> None:
    view, batch = outlook(PEAK)
    assert view.ended(batch) == 0.0
    batch.groups[0][0].state = RequestState.FINISHED
    batch.groups[0][1].state = RequestState.DROPPED
    assert view.ended(batch) == 0.5
