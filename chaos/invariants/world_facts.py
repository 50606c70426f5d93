"""World facts: hosts that have power, the cloud's bill, and the history's reports about hosts.

Owns the shapes. `gleaner.chaos.world_sim` makes them from the state of the simulated machines, never from
what an actor reports about itself; only `HostRecorded` is such a report, and is compared with the others.
"""

import math

import msgspec

from gleaner.chaos.invariants.facts import Fact


class HostLook(msgspec.Struct, frozen=True, kw_only=True):
    """One host that has power.

    Args:
        agent: number of its node agent's process; 0: none runs.
        agent_s, engine_s: ages of these processes.
        calm_s: since the last reason against its use: a fault, a notice, the start or end of a process.
        steady_s: the same without starts and ends of processes.
        missing: kinds of processes that do not run though the node agent does, and since when.
        noticed: it goes away, for good.
    """

    name: str
    role: str
    agent: int = 0
    agent_s: float = 0.0
    engine_s: float = 0.0
    calm_s: float = 0.0
    steady_s: float = 0.0
    missing: dict[str, float] = {}
    noticed: bool = False


class WorldSeen(Fact, frozen=True):
    """The hosts that have power, by name. rented: preemptible ones that are paid for, and since when;
    recorded: those that the history has as up. began: the job's first step has begun.
    verifiers_s: since the last fault of a verifier."""

    hosts: dict[str, HostLook]
    rented: dict[str, float]
    recorded: frozenset[str]
    began: bool = False
    verifiers_s: float = math.inf

    def calm_s(self, *names: str) -> float:
        """Since when there is no reason against any of these hosts, in seconds; 0 where one has no power."""
        return min((look.calm_s if (look := self.hosts.get(name)) else 0.0) for name in names)

    def steady_s(self, *names: str) -> float:
        """The same, without starts and ends of processes."""
        return min((look.steady_s if (look := self.hosts.get(name)) else 0.0) for name in names)


class HostRented(Fact, frozen=True):
    """The provider requested a preemptible host. beside: the number of those that it had already."""

    host: str
    beside: int


class HostDelivered(Fact, frozen=True):
    """The cloud delivers a host that was not requested."""

    host: str


class HostReturned(Fact, frozen=True):
    """A preemptible host is not paid for any more."""

    host: str


class HostRecorded(Fact, frozen=True):
    """The history of the job got this event of a host."""

    host: str
    role: str
    event: str


class Paid(Fact, frozen=True):
    """The job is over. billed_s: host seconds of the cloud between the first and the last record of the
    history; account_s: those of the history; stays: number of stays that the bill has; blurred_s: time in
    which the history could not follow."""

    billed_s: float
    account_s: float
    stays: int
    blurred_s: float


class HostsLeft(Fact, frozen=True):
    """Preemptible hosts that are paid for `after_s` after the end of the job. calm_s: of the head."""

    hosts: tuple[str, ...]
    after_s: float
    calm_s: float


class ExpiredSeen(Fact, frozen=True):
    """A wait of an actor has passed its deadline, and goes on since `since_s`."""

    process: str
    who: str
    what: str
    on: str
    since_s: float
