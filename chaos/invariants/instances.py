"""Instances: what was sent to one is there or is taken back, and one that lives on is not given up.

Owns the dispatches that have no row yet, and the ends of instances that the manager reported without a
reason. Which engines live follows from the simulated machines.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gleaner.actors.names import BALANCER, MANAGER
from gleaner.actors.protocol.balancer import ForgetAll, InstanceDown, InstanceUp
from gleaner.actors.protocol.instances import RegisterInstance
from gleaner.actors.rollout.dispatch.dispatcher import DISPATCH_DEADLINE_S
from gleaner.actors.rollout.state.events import Dispatched
from gleaner.actors.training.job_journal import JobOver
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed
from gleaner.chaos.invariants.shadow import Shadow
from gleaner.chaos.invariants.world_facts import WorldSeen
from gleaner.configs.schema import Liveness
from gleaner.sim.run_setup import HEAD


@dataclass(slots=True)
class _Engine:
    """The newest registration that its own worker sent."""

    incarnation: int
    slots: int
    down_s: float | None = None  # since when the manager has given up this incarnation
    full_s: float = 0.0  # when all of its slots were seen to decode last


class InstancesLive(Check):
    """See `promise`."""

    fact_kinds = (Committed, MessagePassed, WorldSeen)
    message_kinds = (RegisterInstance, InstanceUp, InstanceDown, ForgetAll)
    committed_kinds = (JobOver, Dispatched)
    name = "instances"
    promise = (
        "a dispatched request begins in its instance while that has free slots, or is taken back; an "
        "instance that lives on is not given up"
    )
    meaning = (
        "If this fails, a request waits in an instance that never got it, or an engine that works is thrown "
        "away with all that it decodes."
    )

    def __init__(self, shadow: Shadow, liveness: Liveness) -> None:
        self._shadow = shadow
        self._taken_s = DISPATCH_DEADLINE_S - liveness.check_s
        self._dead_s = liveness.dead_s
        self._engines: dict[str, _Engine] = {}
        self._sent_s: dict[tuple[str, str, int, int], float] = {}  # (request, holder): when it was sent
        self._found: set[str] = set()
        self._over = False  # the job is, and its instances go

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, WorldSeen):
            if not self._over:
                yield from self._look(fact)
        elif isinstance(fact, MessagePassed):
            self._passed(fact)
        elif isinstance(fact, Committed):
            for message in fact.messages:
                if isinstance(message, JobOver):
                    self._over = True
                elif isinstance(message, Dispatched):
                    for name, ticket in zip(message.requests, message.tickets, strict=True):
                        self._sent_s[name, message.instance, message.incarnation, ticket] = fact.at_s

    def _passed(self, fact: MessagePassed) -> None:
        message = fact.message
        if isinstance(message, ForgetAll):
            for known in self._engines.values():
                known.down_s = None
        elif isinstance(message, RegisterInstance):
            if fact.direction == "out" and message.kind == "preemptible":
                self._engines[message.instance] = _Engine(message.worker.incarnation, message.slots)
        elif (
            isinstance(message, InstanceUp | InstanceDown) and fact.to == BALANCER and fact.source == MANAGER
        ):
            engine = self._engines.get(message.instance)
            if engine is not None and engine.incarnation == message.incarnation:
                engine.down_s = fact.at_s if isinstance(message, InstanceDown) else None

    def _look(self, world: WorldSeen) -> Iterator[str]:
        holders = {name: one.holder for name, one in self._shadow.requests.items() if not one.decodes}
        decoding = Counter(
            one.holder[0] for one in self._shadow.requests.values() if one.holder is not None and one.decodes
        )
        for instance, known in self._engines.items():
            if decoding[instance] >= known.slots:
                known.full_s = world.at_s
        self._sent_s = {key: at_s for key, at_s in self._sent_s.items() if holders.get(key[0]) == key[1:]}
        for (name, instance, _, ticket), sent_s in self._sent_s.items():
            engine = self._engines.get(instance)
            if engine is None:
                continue
            free_s = world.at_s - max(sent_s, engine.full_s)
            waited_s = min(free_s, world.calm_s(HEAD, instance.partition("/")[0]))
            if waited_s > self._taken_s and name not in self._found:
                self._found.add(name)
                yield (
                    f"{name} was sent to {instance} as {ticket}, {world.at_s - sent_s:.1f} s ago: it has no "
                    f"row, and {engine.slots - decoding[instance]} slots there are free"
                )
        for instance, engine in self._engines.items():
            host = instance.partition("/")[0]
            calm_s = min(world.calm_s(HEAD, host), world.at_s - (engine.down_s or world.at_s))
            given_up_s = engine.down_s
            if given_up_s is not None and world.calm_s(HEAD, host) - (world.at_s - given_up_s) > self._dead_s:
                engine.down_s = None
                yield (
                    f"{instance}#{engine.incarnation} was given up {calm_s:.1f} s ago, and nothing was "
                    f"against it for {self._dead_s:g} s before"
                )
