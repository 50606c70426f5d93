"""Fleet size: no more hosts than wished, no fewer for long, none after the job, and a true account.

Owns the number of hosts that the journaled plan wishes for, since when there are fewer, and how long the
history could not have hosts that are paid for. The rented hosts and the bill are the cloud's.
"""

from collections.abc import Iterable, Iterator

from gleaner.actors.cluster.fleet import MAX_BACKOFF_S, RESERVED
from gleaner.actors.cluster.fleet_orders import ASK_DEADLINE_S, RETRY_S
from gleaner.actors.cluster.local_hosts import ORDER_S, STOP_S
from gleaner.actors.cluster.provider import CALM_LOOK_S
from gleaner.actors.cluster.scheduler import LOOK_S, LOOKS, ClusterState
from gleaner.actors.names import SCHEDULER
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Committed, Fact
from gleaner.chaos.invariants.membership import seen_s
from gleaner.chaos.invariants.world_facts import (
    HostDelivered,
    HostRented,
    HostsLeft,
    Paid,
    WorldSeen,
)
from gleaner.configs.schema import Fleet, Liveness
from gleaner.sim.run_setup import HEAD, Paces

HOSTS_END_S = ASK_DEADLINE_S + RETRY_S + ORDER_S + STOP_S
"""From the end of a job until its hosts are gone: an order to the provider that is sent again, and one to
each host, which is killed in the end."""
RAISED_S = MAX_BACKOFF_S + CALM_LOOK_S
"""Until a host that failed again and again is started anew."""

RETURNED_S = 5 * CALM_LOOK_S
"""Until a host goes back that was delivered unasked, and is one too many."""


class FleetAsWished(Check):
    """See `promise`. every_instance: the job's plans ignore N_prem."""

    fact_kinds = (Committed, WorldSeen, HostRented, HostDelivered, HostsLeft, Paid)
    committed_kinds = (ClusterState,)
    name = "fleet size"
    promise = (
        "no host is rented beyond N_prem of the newest plan, none that is wished is missing for long, none "
        "outlives its job, and the account of the history is the cloud's bill"
    )
    meaning = "If this fails, hosts are paid for that no plan wished for, or that no report shows."

    def __init__(
        self, fleet: Fleet, liveness: Liveness, paces: Paces, *, every_instance: bool = False
    ) -> None:
        self._every_instance = every_instance
        self._traced = bool(fleet.trace)
        self._most = self._wished = fleet.n_prem_max
        self._before = fleet.n_prem_max
        self._since_s = 0.0
        self._fewer_s = 0.0
        self._looked_s = 0.0
        look_s = max(LOOK_S, liveness.dead_s / LOOKS)
        starts_s = paces.boot_s + paces.boot_spread_s + paces.start_s
        self._unseen_limit_s = seen_s(liveness)
        self._stay_s = starts_s + self._unseen_limit_s + look_s
        self._unseen_s = 0.0  # host seconds
        self._found = False
        self._delivered: dict[str, float] = {}  # hosts that nothing requested: how long one was too many
        self._seen_s = 0.0

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, Committed) and fact.stream == SCHEDULER:
            for message in fact.messages:
                if isinstance(message, ClusterState):
                    self._planned(message, fact.at_s)
        elif isinstance(fact, HostRented):
            yield from self._rented(fact)
        elif isinstance(fact, HostDelivered):
            self._delivered[fact.host] = 0.0
        elif isinstance(fact, WorldSeen):
            self._count_unseen(fact)
            yield from self._look(fact)
            yield from self._unasked(fact)
        elif isinstance(fact, HostsLeft):
            if fact.hosts and fact.after_s >= HOSTS_END_S and fact.calm_s >= HOSTS_END_S:
                yield f"{', '.join(fact.hosts)} are paid for {fact.after_s:.0f} s after the end of the job"
        elif isinstance(fact, Paid):
            yield from self._paid(fact)

    def _planned(self, state: ClusterState, at_s: float) -> None:
        ignored = state.seeding is None or self._every_instance
        wished = self._most if ignored or state.seeding is None else state.seeding.n_prem
        if wished != self._wished:
            self._before, self._wished, self._since_s = self._wished, wished, at_s

    def _rented(self, fact: HostRented) -> Iterator[str]:
        recent = fact.at_s - self._since_s < CALM_LOOK_S
        most = max(self._wished, self._before) if recent else self._wished
        if fact.beside >= min(most, self._most):
            yield f"{fact.host} was rented beside {fact.beside} others; the newest plan wishes for {most}"

    def _count_unseen(self, world: WorldSeen) -> None:
        """A node agent that hangs is not up in the history, and its host is paid for: until its restart, and
        a while after it."""
        passed_s = world.at_s - self._looked_s
        for host in world.rented.keys() & world.hosts.keys() - world.recorded:
            if world.calm_s(host) <= self._unseen_limit_s:
                self._unseen_s += passed_s

    def _look(self, world: WorldSeen) -> Iterator[str]:
        passed_s, self._looked_s = world.at_s - self._looked_s, world.at_s
        fewer = not self._traced and len(world.rented) < min(self._wished, self._most)
        calm = world.calm_s(HEAD, RESERVED) > passed_s
        self._fewer_s = self._fewer_s + passed_s if fewer and calm else 0.0
        if self._fewer_s > RAISED_S and not self._found:
            self._found = True
            number = len(world.rented)
            yield f"{number} hosts for {self._fewer_s:.0f} s; the newest plan wishes for {self._wished}"

    def _unasked(self, world: WorldSeen) -> Iterator[str]:
        """The provider looks at what runs once a second, while the head lives."""
        passed_s, self._seen_s = world.at_s - self._seen_s, world.at_s
        many = len(world.rented) > self._most
        calm = HEAD in world.hosts and world.calm_s(HEAD) > passed_s
        for host in [host for host in self._delivered if host not in world.rented]:
            del self._delivered[host]
        for host, before_s in self._delivered.items():
            many_s = self._delivered[host] = before_s + passed_s if many and calm else 0.0
            if before_s <= RETURNED_S < many_s:
                yield (
                    f"{host} was delivered unasked, and is kept beside {len(world.rented) - 1} others for "
                    f"{many_s:.0f} s; {self._most} are wished for"
                )

    def _paid(self, paid: Paid) -> Iterator[str]:
        """Each stay is seen a while after it began and ended."""
        limit_s = paid.stays * self._stay_s + paid.blurred_s * max(1, self._most)
        lacks_s = paid.billed_s - paid.account_s
        if not -limit_s <= lacks_s <= limit_s + self._unseen_s:
            yield (
                f"the cloud bills {paid.billed_s:.1f} s of preemptible hosts, in {paid.stays} stays; the "
                f"history has {paid.account_s:.1f} s"
            )
