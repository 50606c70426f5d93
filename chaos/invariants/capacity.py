"""No capacity forgotten: what is up and well decodes like its peers.

Owns, for each preemptible instance, which weights its own worker serves, and how long it has had nothing to
do. Which hosts are well follows from the simulated machines, not from the manager: an instance that the
manager forgot counts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gleaner.actors.cluster.fleet import RESERVED
from gleaner.actors.engine.worker.worker import REGISTER_DEADLINE_S
from gleaner.actors.protocol.instances import RegisterInstance, Serving
from gleaner.actors.protocol.requests import BATCH
from gleaner.actors.rollout.dispatch.migration import ROUND_S
from gleaner.actors.rollout.dispatch.placement import MOST_SPEED
from gleaner.actors.rollout.manager import SWEEP_S
from gleaner.actors.rollout.state.events import Dispatched, VersionPublished
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed
from gleaner.chaos.invariants.shadow import Shadow, ShadowRequest
from gleaner.chaos.invariants.world_facts import HostLook, WorldSeen
from gleaner.configs.schema import Liveness
from gleaner.nodeagent.departure import AGAIN_S, ASK_DEADLINE_S
from gleaner.sim.run_setup import HEAD

TAKEN_UP_S = SWEEP_S + ROUND_S
"""Time for the manager to notice that an instance serves, and to place or move requests."""


def usable_s(liveness: Liveness) -> float:
    """From the last reason against a host until it is used again: the manager is silent for as long as a
    death takes, its worker asks whether it still counts and registers, its node agent repeats that it stays.
    """
    asked_s = max(liveness.check_s + REGISTER_DEADLINE_S, AGAIN_S + ASK_DEADLINE_S)
    return liveness.dead_s + asked_s


@dataclass(slots=True)
class _Instance:
    """What its own worker has: weights since `since_s`, slots."""

    slots: int = 1
    version: int | None = None
    root: bytes = b""
    since_s: float = 0.0
    idle_s: float = 0.0
    passed_over: str = ""  # by which dispatch, if it has got none since
    found: bool = False


class NoCapacityForgotten(Check):
    """See `promise`."""

    fact_kinds = (Committed, MessagePassed, WorldSeen)
    message_kinds = (RegisterInstance, Serving)
    committed_kinds = (VersionPublished, Dispatched)
    name = "no capacity forgotten"
    promise = (
        "a host is used again soon after the last reason against it (a fault, a notice, a start): its "
        "instance serves the newest weights, and has requests while others queue or hold far more"
    )
    meaning = (
        "If this fails, a host that is paid for does nothing for the rest of the job: a suspicion or a "
        "notice was never taken back, or its instance was forgotten."
    )

    def __init__(self, shadow: Shadow, liveness: Liveness, *, by_shares: bool = True) -> None:
        """by_shares: requests are placed by shares; False: by the fewest pending ones alone, as published, so
        an instance with a free slot may get another one beside an instance that has nothing."""
        self._shadow, self._by_shares = shadow, by_shares
        self._usable_s = usable_s(liveness)
        self._instances: dict[str, _Instance] = {}
        self._well: set[str] = set()
        self._published: tuple[int, float] = (-1, 0.0)
        self._looked_s = 0.0

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, WorldSeen):
            yield from self._look(fact)
        elif isinstance(fact, Committed):
            for message in fact.messages:
                if isinstance(message, VersionPublished) and message.version != self._published[0]:
                    self._published = message.version, fact.at_s
                elif isinstance(message, Dispatched):
                    self._dispatched(message, fact.at_s)
        elif isinstance(fact, MessagePassed) and fact.direction == "out":
            self._reported(fact)

    def _reported(self, fact: MessagePassed) -> None:
        message = fact.message
        if isinstance(message, RegisterInstance) and message.kind == "preemptible":
            known = self._instances.setdefault(message.instance, _Instance())
            known.slots = message.slots
        elif isinstance(message, Serving):
            its = self._instances.get(message.instance)
            if its is not None and (its.version, its.root) != (message.version, message.root):
                its.version, its.root, its.since_s = message.version, message.root, fact.at_s

    def _dispatched(self, message: Dispatched, now_s: float) -> None:
        """An instance must not get many requests while a well one has none, and gets none."""
        if (its := self._instances.get(message.instance)) is None:
            return
        its.passed_over = ""
        if not self._by_shares:
            return
        requests = [self._shadow.requests.get(name) for name in message.requests]
        first = next((one for one in requests if one is not None), None)
        holding = self._holding()
        most = holding[message.instance] + len(requests)
        if first is None or first.batch.startswith(BATCH) or message.moved or most <= MOST_SPEED:
            return
        for name in self._well - {message.instance}:
            its = self._instances[name]
            if self._may(its, first) and now_s - its.since_s > TAKEN_UP_S and not holding[name]:
                its.passed_over = its.passed_over or f"{message.instance} got {most} requests"

    def _look(self, world: WorldSeen) -> Iterator[str]:
        passed_s, self._looked_s = world.at_s - self._looked_s, world.at_s
        around_s = world.calm_s(HEAD, RESERVED)
        hosts = world.hosts.values()
        well = {f"{look.name}/engine" for look in hosts if self._is_well(look, around_s)}
        self._well = (well & self._instances.keys()) if world.began else set()
        for name in self._instances.keys() - self._well:
            self._instances[name].passed_over = ""
        holding = self._holding()
        queued = [one for one in self._shadow.requests.values() if _queued(one)]
        version, published_s = self._published
        for name in sorted(self._well):
            its = self._instances[name]
            late_s = world.at_s - published_s
            if (its.version is None or its.version < version) and late_s > self._usable_s and not its.found:
                its.found = True
                yield f"{name} serves version {its.version}, {late_s:.1f} s after {version} was published"
            if its.passed_over and not its.found:
                its.found = True
                yield (
                    f"{name} has nothing to do and serves version {its.version}, for "
                    f"{world.at_s - its.since_s:.1f} s: {its.passed_over}, and it got none"
                )
            idle = not holding[name] and any(self._may(its, one) for one in queued)
            its.idle_s = its.idle_s + passed_s if idle else 0.0
            if its.idle_s > TAKEN_UP_S and not its.found:
                its.found = True
                yield (
                    f"{name} has had nothing to do for {its.idle_s:.1f} s, serves version {its.version}, "
                    f"and {len(queued)} requests wait, as {queued[0].id}"
                )

    def _is_well(self, look: HostLook, around_s: float) -> bool:
        least_s = min(look.calm_s, look.engine_s, around_s)
        return look.role == "preemptible" and least_s > self._usable_s

    def _holding(self) -> Counter[str]:
        return Counter(one.holder[0] for one in self._shadow.requests.values() if one.holder is not None)

    def _may(self, its: _Instance, request: ShadowRequest) -> bool:
        if its.version is None or not request.admits(its.version):
            return False
        exact = request.min_version is None
        root = self._shadow.roots.get(request.batch) if exact else self._shadow.published.get(its.version)
        return root == its.root


def _queued(request: ShadowRequest) -> bool:
    over = request.finished or request.dropped or request.due or request.holder is not None
    return not (over or request.batch.startswith(BATCH))
