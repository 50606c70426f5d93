"""Drains end: a withdrawn instance is empty in time, and its owner is answered.

Owns the withdrawals that have no answer yet, with the end of their grace, and since when the instance of each
holds nothing. A newer withdrawal of an instance replaces the earlier ones, which are answered all the same.

An ask takes effect once. If its answer is lost, the same answer is sent again from memory: it was true when
it was first given. Its instance may have registered anew meanwhile and have got requests, since no journal
has its drain; the host withdraws it again within `departure.AGAIN_S`, or ends it in order.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.balancer import ForgetAll
from gleaner.actors.protocol.cluster import PreemptionNotice
from gleaner.actors.protocol.instances import NewWork, Withdraw, Withdrawn
from gleaner.actors.rollout.fleet.drain import ABORT_AGAIN_S
from gleaner.actors.rollout.manager import SWEEP_S
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Fact, MessagePassed
from gleaner.chaos.invariants.shadow import Shadow
from gleaner.chaos.invariants.world_facts import HostReturned, WorldSeen
from gleaner.nodeagent.departure import MARGIN_S
from gleaner.sim.run_setup import HEAD
from gleaner.supervisor import Message
from gleaner.supervisor.system_messages import Failure

ABORTS = 4
EMPTY_S = ABORTS * ABORT_AGAIN_S + SWEEP_S
"""From the end of its grace until an instance holds nothing: its requests are aborted again and again."""
ANSWERED_S = ABORT_AGAIN_S + SWEEP_S
"""From the last request of an instance until the answer to its withdrawal: the manager looks at both ends."""


MAX_SENT = 8
"""Withdrawals of one source on their way; earlier ones are lost."""


@dataclass(slots=True, eq=False)
class _Withdrawal:
    source: str
    message: Withdraw
    repeated: bool = False  # the same was sent again: a repetition, or an ask that replaces it
    until_s: float = math.inf  # the manager has not got it before
    empty_s: float | None = None  # since when it holds nothing


class DrainsEnd(Check):
    """See `promise`."""

    fact_kinds = (MessagePassed, WorldSeen, HostReturned)
    message_kinds = (Withdraw, Withdrawn, Failure, NewWork, ForgetAll, PreemptionNotice)
    name = "drains end"
    promise = (
        "a withdrawn instance holds nothing soon after its grace, its withdrawal is answered when it holds "
        "nothing, neither before nor later, and a host with a notice is empty when it goes"
    )
    meaning = (
        "If this fails, a host waits for nothing until its cloud takes it, or its requests are found dead "
        "and go on late."
    )

    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow
        self._sent: dict[str, list[_Withdrawal]] = {}  # by source: on their way
        self._open: dict[str, list[_Withdrawal]] = {}  # by instance; the newest one counts
        self._again: set[str] = set()  # sources whose repeated withdrawal may have a second answer
        self._newest: dict[str, Message] = {}  # by source: the newest answer
        self._called_off: Counter[str] = Counter()  # by source: their answers are still to come
        self._notices: dict[str, tuple[float, float]] = {}  # by host: when it came, and its end
        self._manager = ""
        self._steady_s: dict[str, float] = {}

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, WorldSeen):
            yield from self._look(fact)
        elif isinstance(fact, HostReturned):
            yield from self._returned(fact)
        elif isinstance(fact, MessagePassed):
            yield from self._passed(fact)

    def _passed(self, fact: MessagePassed) -> Iterator[str]:
        message = fact.message
        if isinstance(message, ForgetAll):
            self._open.clear()  # another manager
            self._again.clear()
            self._called_off.clear()
        elif isinstance(message, Withdraw) and fact.to == MANAGER:
            if fact.direction != "in":
                self._asked(fact.source, message)
            if fact.direction != "out":
                self._received(fact.source, message, fact.at_s)
        elif isinstance(message, Withdrawn) and fact.source == MANAGER and fact.direction != "in":
            again = self._newest.get(fact.to) is message  # it is kept as it is
            self._newest[fact.to] = message
            yield from self._answered(fact.to, again=again)
        elif isinstance(message, Failure) and fact.source == MANAGER and fact.direction != "in":
            self._refused(fact.to)
        elif isinstance(message, NewWork) and fact.direction != "out":
            if message.allowed or any(its.message.leaves for its in self._open.get(message.instance, ())):
                # The host stays, or only may go; each withdrawal that is called off is answered all the same.
                self._called_off.update(its.source for its in self._open.pop(message.instance, ()))
        elif isinstance(message, PreemptionNotice) and fact.direction == "in":
            host = fact.process.partition("/")[0]
            self._notices.setdefault(host, (fact.at_s, fact.at_s + message.deadline_s))

    def _asked(self, source: str, message: Withdraw) -> None:
        sent = self._sent.get(source, [])
        for its in (*sent, *self._open.get(message.instance, ())):
            if its.source == source and its.message == message:
                its.repeated = True
                return
        self._sent[source] = [*sent, _Withdrawal(source, message)][-MAX_SENT:]

    def _received(self, source: str, message: Withdraw, at_s: float) -> None:
        """An ask that has no answer yet is sent again, and received again: it is one all the same."""
        sent = self._sent.get(source, [])
        its = next((its for its in sent if its.message == message), None)
        if its is not None:
            self._sent[source] = sent[sent.index(its) + 1 :]  # earlier ones are lost
            its.until_s = at_s + message.grace_s
            self._open.setdefault(message.instance, []).append(its)

    def _answered(self, source: str, *, again: bool) -> Iterator[str]:
        """The answer to the earliest withdrawal of this source. again: it was sent before."""
        if self._called_off[source]:
            self._called_off[source] -= 1
            return
        for name, asked in list(self._open.items()):
            first = next((its for its in asked if its.source == source), None)
            if first is None:
                continue
            holds, newest = self._holding()[name], first is asked[-1] and not first.repeated
            newest = newest and source not in self._again
            self._again.discard(source)
            if first.repeated:  # sent again, or asked for anew: then both have an answer
                self._again.add(source)
            self._close(name, first)
            if holds and newest and not again:
                yield f"{name} holds {holds} requests, and its withdrawal is answered"

    def _refused(self, source: str) -> None:
        """It asks again; a withdrawal that is under way is never refused."""
        for name, asked in list(self._open.items()):
            if asked[-1].source == source:
                self._close(name, asked[-1])

    def _close(self, name: str, its: _Withdrawal) -> None:
        self._open[name].remove(its)
        if not self._open[name]:
            del self._open[name]

    def _look(self, world: WorldSeen) -> Iterator[str]:
        self._steady_s = {name: look.steady_s for name, look in world.hosts.items()}
        holding = self._holding()
        calm_s = world.calm_s(HEAD)
        for name, asked in list(self._open.items()):
            its = asked[-1]
            if holding[name]:
                its.empty_s = None
            elif its.empty_s is None:
                its.empty_s = world.at_s
            empty_s = 0.0 if its.empty_s is None else world.at_s - its.empty_s
            if min(empty_s, calm_s) > ANSWERED_S:
                del self._open[name]
                yield f"{name} holds nothing for {empty_s:.1f} s, and its withdrawal has no answer"
                continue
            late_s, host = world.at_s - its.until_s, name.partition("/")[0]
            if holding[name] and min(late_s, world.calm_s(HEAD, host)) > EMPTY_S:
                del self._open[name]
                yield f"{name} holds {holding[name]} requests, {late_s:.1f} s after the grace of its drain"

    def _returned(self, fact: HostReturned) -> Iterator[str]:
        came_s, ends_s = self._notices.pop(fact.host, (0.0, 0.0))
        held = self._holding()[f"{fact.host}/engine"]
        length_s = ends_s - came_s
        steady_s = min(self._steady_s.get(HEAD, 0.0), self._steady_s.get(fact.host, 0.0))
        if (
            held
            and length_s > 2 * MARGIN_S
            and steady_s >= length_s - MARGIN_S
            and fact.at_s >= ends_s - MARGIN_S
        ):
            yield f"{fact.host} goes with {held} requests, {length_s:.0f} s after its notice"

    def _holding(self) -> Counter[str]:
        return Counter(one.holder[0] for one in self._shadow.requests.values() if one.holder is not None)
