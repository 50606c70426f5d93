"""LoadBalancer messages: the manager reports instances and asks; workers measure."""

import msgspec

from gleaner.actors.protocol.device import Device
from gleaner.actors.protocol.throughput import Work
from gleaner.supervisor import Message


class InstanceUp(Message, frozen=True):
    """An incarnation of an instance may get requests once it serves. `pending`, `executing`: the load that it
    has already. `device`: what it shares with other instances; None: nothing. `engines`: copies of the model
    in it."""

    instance: str
    incarnation: int
    kind: str
    slots: int
    pending: int
    executing: int
    device: Device | None = None
    engines: int = 1


class InstanceDown(Message, frozen=True):
    """An incarnation died or left."""

    instance: str
    incarnation: int


class InstanceServes(Message, frozen=True):
    """Which weights an instance serves now; None: none, so it gets no requests."""

    instance: str
    incarnation: int
    version: int | None
    root: bytes = b""


class InstanceSuspected(Message, frozen=True):
    """An incarnation may be dead, or answers again."""

    instance: str
    incarnation: int
    suspected: bool


class LoadChange(msgspec.Struct, frozen=True, kw_only=True):
    """Changes in the requests of an instance since the last report."""

    instance: str
    incarnation: int
    dispatched: int = 0
    started: int = 0
    ended_executing: int = 0
    ended_pending: int = 0


class LoadChanged(Message, frozen=True):
    """Reports of the manager, in order."""

    changes: list[LoadChange]


class Place(Message, frozen=True):
    """Asks for an instance for each of the next `count` requests. `roots`: the versions that may make them,
    with their roots.

    `moved`: for the first of them, the instance that each is being moved to. That instance gets the request
    whatever its queue, if it may take it at all. `preferred`: an instance that gets one request if it has
    free capacity.
    """

    roots: dict[int, bytes]
    count: int
    moved: tuple[str, ...] = ()
    preferred: str = ""


class Placed(Message, frozen=True):
    """One instance per request, in order, "" for none; fewer than requested if every queue is at its
    threshold."""

    instances: list[str]


class EngineMeasured(Message, frozen=True):
    """From a worker: what its engine did since the last report, as sums of like turns. retracted: requests
    whose caches it gave up for others, since this incarnation's start."""

    instance: str
    incarnation: int
    sums: list[Work]
    retracted: int = 0


class InstanceHalved(Message, frozen=True):
    """From a worker: half of its engines serve from now on, or all again. What restarts of the LoadBalancer
    or the manager forget lasts to the end of a seeding window."""

    instance: str
    incarnation: int
    half: bool


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one instance, columns in the order of their tickets; see `continuous_lb.Requests`.

    `tickets` i64, `context` and `expected` f64, `gate` i64 (an index), `movable` and `executing` u8; all raw.
    """

    instance: str
    incarnation: int
    tickets: bytes
    context: bytes
    expected: bytes
    gate: bytes
    movable: bytes
    executing: bytes
    busy: bool


class Rebalance(Message, frozen=True):
    """Asks which requests should move, from where to where. The manager sends what it knows of them. `gates`:
    for each batch, the versions that may make its requests, with their roots."""

    gates: list[dict[int, bytes]]
    holdings: list[Holding]


class MoveOrder(msgspec.Struct, frozen=True, kw_only=True):
    """These tickets of one instance go to another; `executing`: they were being decoded."""

    source: str
    source_incarnation: int
    target: str
    target_incarnation: int
    tickets: tuple[int, ...]
    executing: bool


class Moves(Message, frozen=True):
    """One round; empty when nothing is to be gained."""

    moves: list[MoveOrder]


class ForgetAll(Message, frozen=True):
    """A new manager starts; reports of the old one are void."""
