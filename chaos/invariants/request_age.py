"""Request age: a request ends within its own time, however often it moves.

Owns the time of each request's first dispatch, by the journal. A manager that begins anew gives its requests
their whole time again (`actors/rollout/requests/deadlines.py`), so each life is measured from its start.
"""

from collections.abc import Iterable, Iterator

from gleaner.actors.protocol.balancer import ForgetAll
from gleaner.actors.protocol.requests import BATCH
from gleaner.actors.rollout.manager import SWEEP_S
from gleaner.actors.rollout.state.events import Dispatched
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed
from gleaner.chaos.invariants.shadow import Shadow
from gleaner.chaos.invariants.world_facts import WorldSeen
from gleaner.sim.run_setup import HEAD

SWEEPS = 2
"""Periods of the manager in which a passed deadline is noticed and committed."""


class RequestsEndInTime(Check):
    """See `promise`. limit_s: `rollout.request_deadline_s`; 0: none."""

    fact_kinds = (Committed, WorldSeen, MessagePassed)
    message_kinds = (ForgetAll,)
    committed_kinds = (Dispatched,)
    name = "request age"
    promise = "a request is over within its deadline after its first dispatch, however often it moves"
    meaning = "If this fails, one long request holds up a step for as long as hosts come and go."

    def __init__(self, shadow: Shadow, limit_s: float) -> None:
        self._shadow, self._limit_s = shadow, limit_s
        self._first_s: dict[str, float] = {}

    def see(self, fact: Fact) -> Iterable[str]:
        if not self._limit_s:
            return
        if isinstance(fact, MessagePassed):
            self._first_s = dict.fromkeys(self._first_s, fact.at_s)
        elif isinstance(fact, Committed):
            for message in fact.messages:
                if isinstance(message, Dispatched):
                    for name in message.requests:
                        self._first_s.setdefault(name, fact.at_s)
        elif isinstance(fact, WorldSeen):
            yield from self._look(fact)

    def _look(self, world: WorldSeen) -> Iterator[str]:
        limit_s = self._limit_s + SWEEPS * SWEEP_S
        if world.calm_s(HEAD) < SWEEPS * SWEEP_S:
            return  # a manager may be about to begin
        steady_s = world.steady_s(HEAD)
        for name, first_s in list(self._first_s.items()):
            request = self._shadow.requests.get(name)
            over = request is None or request.finished or request.dropped or request.due
            if over or name.startswith(BATCH):
                del self._first_s[name]
            elif min(world.at_s - first_s, steady_s) > limit_s:
                del self._first_s[name]
                yield (
                    f"{name} was first dispatched {world.at_s - first_s:.1f} s ago and goes on; its deadline "
                    f"is {self._limit_s:g} s"
                )
