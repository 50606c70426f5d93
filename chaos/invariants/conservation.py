"""Work conservation: no slot is free while a request could use it.

Engines also store no requests. Owns the time for which an instance had a free slot and no request on its way
to it. The manager's reports to the LoadBalancer give the instances that may get requests; the journal gives
the waiting and the running requests.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gleaner.actors.names import BALANCER, MANAGER
from gleaner.actors.protocol.balancer import (
    ForgetAll,
    InstanceDown,
    InstanceServes,
    InstanceSuspected,
    InstanceUp,
    Placed,
)
from gleaner.actors.protocol.requests import BATCH
from gleaner.actors.protocol.rollout import HoldBack
from gleaner.actors.rollout.dispatch.migration import ROUND_S
from gleaner.actors.rollout.manager import SWEEP_S
from gleaner.actors.rollout.state.events import Dispatched
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed
from gleaner.chaos.invariants.shadow import Shadow, ShadowRequest

LOOK_S = 0.25
"""Between two checks. A round trip from the manager to the balancer is far shorter."""
IDLE_S = SWEEP_S + ROUND_S
"""A slot that is free for so long, with no request on its way, was forgotten: the manager has looked at its
deadlines, and at what to move."""


@dataclass(slots=True)
class _Instance:
    """The manager's report about one instance. placed: requests for it that are not yet in the journal."""

    incarnation: int
    slots: int
    version: int | None = None
    root: bytes = b""
    suspected: bool = False
    placed: int = 0
    idle_s: float = 0.0
    found: bool = False


class WorkConserved(Check):
    """See `promise`. max_pending: Θ; speed: the most by which the balancer multiplies it."""

    fact_kinds = (Committed, MessagePassed)
    name = "work conservation"
    promise = (
        "no instance has a free slot and nothing on its way to it while a request waits that it may decode, "
        f"for {IDLE_S:g} s; and no more than its slots, or Θ, wait in it"
    )
    meaning = (
        "If this fails, devices that are paid for idle beside a queue, or one instance holds a queue "
        "that another one could serve."
    )

    def __init__(self, shadow: Shadow, max_pending: int, speed: float) -> None:
        self._shadow = shadow
        self._most_waiting = round(max_pending * speed)
        self._instances: dict[str, _Instance] = {}
        self._looked_s = 0.0
        self._held_until_s = 0.0
        self._process = ""  # of the manager
        self._runs = False  # it has sent something since the last look

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, MessagePassed):
            self._observe(fact)
        elif isinstance(fact, Committed):
            for message in fact.messages:
                if isinstance(message, Dispatched) and (known := self._instances.get(message.instance)):
                    known.placed = 0
        return self._look(fact.at_s) if fact.at_s - self._looked_s >= LOOK_S else ()

    def _observe(self, fact: MessagePassed) -> None:
        if fact.process == self._process and fact.direction == "out":
            self._runs = True
        if fact.to == MANAGER and isinstance(message := fact.message, HoldBack):
            self._held_until_s = fact.at_s + message.for_s
        if fact.to == BALANCER and fact.source == MANAGER:
            self._process = fact.process
            self._reported(fact.message)
        elif fact.source == BALANCER and isinstance(message := fact.message, Placed):
            for name, count in Counter(message.instances).items():
                if name in self._instances:
                    self._instances[name].placed += count

    def _reported(self, message: object) -> None:
        if isinstance(message, ForgetAll):
            self._instances.clear()
        elif isinstance(message, InstanceUp):
            self._instances[message.instance] = _Instance(message.incarnation, message.slots)
        elif isinstance(message, InstanceDown | InstanceServes | InstanceSuspected):
            known = self._instances.get(message.instance)
            if known is None or known.incarnation != message.incarnation:
                return
            if isinstance(message, InstanceDown):
                del self._instances[message.instance]
            elif isinstance(message, InstanceServes):
                known.version, known.root = message.version, message.root
            else:
                known.suspected = message.suspected

    def _look(self, now_s: float) -> Iterator[str]:
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        runs, self._runs = self._runs, False
        holding, waiting, queued = Counter[str](), Counter[str](), list[ShadowRequest]()
        for request in self._shadow.requests.values():
            if request.holder is not None:
                holding[request.holder[0]] += 1
                waiting[request.holder[0]] += not request.decodes
            elif self._eligible(request):
                queued.append(request)
        for name, known in self._instances.items():
            most = max(known.slots, self._most_waiting)
            if waiting[name] > most and not known.found:
                known.found = True
                yield f"{waiting[name]} requests wait in {name}, at most {most} may"
            idle = (
                not (known.suspected or known.placed or waiting[name])
                and holding[name] < known.slots
                and now_s >= self._held_until_s
                and any(self._may(known, request) for request in queued)
            )
            known.idle_s = 0.0 if not idle else known.idle_s + passed_s if runs else known.idle_s
            if known.idle_s > IDLE_S and not known.found:
                known.found = True
                yield (
                    f"{name} has had {known.slots - holding[name]} of {known.slots} slots free for "
                    f"{known.idle_s:.1f} s, and {len(queued)} requests wait, as {queued[0].id}"
                )

    @staticmethod
    def _eligible(request: ShadowRequest) -> bool:
        """The request waits for an instance. A single request that lost one may have to run alone: it is left
        out."""
        if request.finished or request.dropped or request.due:
            return False
        return not (request.batch.startswith(BATCH) and request.attempts)

    def _may(self, instance: _Instance, request: ShadowRequest) -> bool:
        version = instance.version
        if version is None or not request.admits(version):
            return False
        exact = request.min_version is None
        root = self._shadow.roots.get(request.batch) if exact else self._shadow.published.get(version)
        return root == instance.root
