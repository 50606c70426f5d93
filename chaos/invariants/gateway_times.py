"""Gateway times: calls end, clients that left hold nothing, and the limit counts what is there.

Owns the bounds. Each is counted from the call or from the last reason against the head, whichever is later.
"""

from collections.abc import Iterable, Iterator

from gleaner.actors.gateway.gateway import GRACE_S
from gleaner.chaos.invariants.check import Check, some
from gleaner.chaos.invariants.facts import Fact
from gleaner.chaos.invariants.gateway_facts import CallOver, CallSent, GatewayCall, GatewaySeen
from gleaner.chaos.invariants.gateway_requests import Asked, GatewayRequests
from gleaner.chaos.invariants.world_facts import WorldSeen
from gleaner.sim.run_setup import HEAD

LATE_S = GRACE_S + 3.0
"""Beyond its deadline: the manager's report of the end, a retry, the way to the client."""
LEFT_S = 3.0
"""For the request of a client that left in calm: its connection ends, it is cancelled, the manager looks."""
LEFT_LOST_S = 15.0
"""The same where something was broken meanwhile: a cancellation that was lost is sent again after 10 s."""
AT_LIMIT = "as many as gateway.max_concurrent admits"
SETTLE_S = 5.0
"""The gateway counts a choice for so long after its call is over."""


class GatewayTimes(Check):
    """See `promise`. most: `gateway.max_concurrent`. The `GatewayAnswers` with these requests sees facts
    first."""

    fact_kinds = (CallSent, CallOver, WorldSeen, GatewaySeen)
    name = "gateway times"
    promise = (
        "a call is over within its deadline, a client that left holds no engine, and no call is refused "
        "below the limit"
    )
    meaning = (
        "If this fails, clients hang, engines work for clients that are gone, or a gateway that has room "
        "refuses its clients, the more the longer it lives."
    )

    def __init__(self, requests: GatewayRequests, most: int) -> None:
        self._requests, self._most = requests, most
        self._open: dict[tuple[str, int], CallSent] = {}
        self._life = (0, 0)
        self._life_s = 0.0
        self._late: set[tuple[str, int]] = set()
        self._held: set[str] = set()
        self._ended: list[tuple[float, int]] = []  # calls that were over lately: when, and their choices
        self._reachable_s = 0.0

    def see(self, fact: Fact) -> Iterable[str]:
        match fact:
            case CallSent():
                self._open[_name(fact.call)] = fact
            case CallOver():
                self._open.pop(_name(fact.call), None)
                self._ended = [one for one in self._ended if one[0] >= fact.at_s - SETTLE_S]
                self._ended.append((fact.at_s, len(fact.call.origins())))
                yield from self._limit(fact)
            case GatewaySeen():
                if fact.life != self._life:
                    self._life, self._life_s = fact.life, fact.at_s
                if not fact.reachable:
                    self._reachable_s = fact.at_s
            case WorldSeen():
                yield from some(self._look(fact))

    def _limit(self, fact: CallOver) -> Iterator[str]:
        if AT_LIMIT not in fact.error:
            return
        under_way = sum(len(one.call.origins()) for one in self._open.values())
        lately = sum(count for _, count in self._ended)
        left = sum(self._holds(asked) for asked in self._requests.asked.values())
        if under_way + lately + left < self._most:
            yield (
                f"{fact.call.name} was refused at the limit of {self._most}; {under_way} choices are under "
                f"way, {lately} were until lately, {left} of clients that left"
            )

    def _holds(self, asked: Asked) -> bool:
        """Whether it is a request that goes on without its client."""
        if asked.over_s is None or not asked.begun:
            return False
        return any(not known.finished for known in self._requests.lives(asked.call.origins()[0]))

    def _look(self, world: WorldSeen) -> Iterator[str]:
        calm_s = min(world.calm_s(HEAD), world.at_s - self._reachable_s)
        for name, sent in self._open.items():
            call = sent.call
            waits_s = min(world.at_s - sent.at_s, calm_s)
            if call.pause_s or call.leave_s or name in self._late:
                continue  # it reads, or stays, as long as it likes
            if waits_s > call.deadline_s + LATE_S:
                self._late.add(name)
                yield (
                    f"{call.name} has a deadline of {call.deadline_s:g} s and waits since "
                    f"{world.at_s - sent.at_s:.1f} s, {waits_s:.1f} s of them in calm"
                )
        for key, asked in self._requests.asked.items():
            left_s = None if asked.call.rid else asked.over_s
            if left_s is None or self._life_s > asked.sent_s:
                continue  # a gateway that died, or crashed, left it to its deadline
            over_s = world.at_s - left_s
            if over_s < LEFT_S or calm_s < min(over_s, LEFT_LOST_S):
                continue
            for known in self._requests.lives(key):
                if not (known.finished or known.dropped or known.due) and known.id not in self._held:
                    self._held.add(known.id)
                    yield f"{asked.call.name} is over since {over_s:.1f} s, and {known.id} goes on"


def _name(call: GatewayCall) -> tuple[str, int]:
    return call.client, call.number
