"""Balancer: the instance of the next request (RLBoost, Algorithm 2, lines 1-12).

Joins the shortest queue, with delayed dispatch. Owns the known load of the instances, and the choice. Pure:
no clock, no I/O. It moves nothing: the manager dispatches what `select` returns and reports what then
happened. Queues are weighed in seconds of work: on an instance twice as fast, two requests count as one. If
all are equally fast, or nothing is measured yet, that is the paper's rule. Line 9 of the paper minimises over
all instances I; the candidates C are meant.

An instance immediately gets as much of its share as it can decode. Its share is what it would have if all
present instances had equal work, including those that still load the weights; otherwise the first one to
serve would take all. Beyond that at most Θ (`max_pending`, times its speed) requests are pending on it, that
is dispatched and not yet known to decode. A request without free capacity waits in the manager (line 12),
because there it can still go to the instance that becomes free first. Reports about an older incarnation
change nothing (they are counted in `ignored`), and no count ever goes below zero.

Instances that share a device, such as the cores of a computer, are filled one after the other (`devices`):
one more request adds a row to an engine that decodes anyway, but a whole decode step to an idle one. Those
that have work get requests first, then the fastest; a trainer's own engine is last. An instance of a later
turn gets nothing while one of the first turn serves.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import ceil, log2
from statistics import median
from typing import NamedTuple

from gleaner.actors.protocol.device import Device
from gleaner.actors.rollout.dispatch.devices import ROUNDING, turns

InstanceId = str

SPEED_STEP = 2**0.5
"""Speeds are rounded to steps of this factor: measurements of equal machines differ by a few per cent, and
would break ties that should remain ties."""
MOST_SPEED = 4.0
"""Θ grows with the speed up to this factor, and falls to one request at least: a queue is an engine's supply
for its next turn, not a store."""


class InstanceKind(enum.StrEnum):
    """What an instance runs on."""

    RESERVED = "reserved"
    PREEMPTIBLE = "preemptible"


@dataclass(slots=True)
class Instance:
    """What the balancer knows of one incarnation of an instance.

    `slots`: how many requests it decodes at once. `version` and `root`: the weights that it proved to serve
    (None: none now) and the root digest of their manifest. `chosen`: when it last got a request, as a count
    of dispatches. `speed`: of its hardware, relative to the median instance. `device`: what it shares; None:
    nothing. `half`: half of its engines have left.
    """

    id: InstanceId
    incarnation: int
    kind: InstanceKind
    slots: int
    version: int | None = None
    root: bytes = b""
    pending: int = 0
    executing: int = 0
    draining: bool = False
    suspected: bool = False
    chosen: int = 0
    speed: float = 1.0
    device: Device | None = None
    engines: int = 1
    half: bool = False

    @property
    def pace(self) -> float:
        """`speed` of the engines that have not left."""
        return self.speed / 2 if self.half else self.speed

    def serves(self, roots: Mapping[int, bytes]) -> bool:
        """Whether it may get requests that one of these versions may make, each with its root."""
        return (
            not (self.draining or self.suspected)
            and self.version is not None
            and roots.get(self.version) == self.root
        )

    def preference(self, roots: Mapping[int, bytes]) -> tuple[bool, bool, int, float, InstanceId]:
        """Sort key: smallest for the instance that gets work first, among those that share a device."""
        work = self.pending + self.executing
        return self.kind is InstanceKind.RESERVED, not self.serves(roots), -work, -self.speed, self.id


class Share(NamedTuple):
    """What an instance would decode of all requests, and the turn of its device in which it gets them."""

    turn: int
    requests: int


class Balancer:
    """See the module. Each method that records a report returns whether it counted."""

    def __init__(self, max_pending: int) -> None:
        if max_pending < 1:
            raise ValueError(
                f"max_pending is {max_pending}; at least 1 is needed for any request to be dispatched"
            )
        self.max_pending = max_pending
        self.instances: dict[InstanceId, Instance] = {}
        self.ignored = 0
        self._dispatches = 0

    def joined(
        self,
        id: InstanceId,
        incarnation: int,
        kind: InstanceKind,
        slots: int,
        *,
        pending: int = 0,
        executing: int = 0,
        device: Device | None = None,
        engines: int = 1,
    ) -> bool:
        """Add an instance with this load (after a restart of the manager it already has some)."""
        known = self.instances.get(id)
        if known is not None and known.incarnation >= incarnation:
            return self._ignore()
        self.instances[id] = Instance(
            id,
            incarnation,
            kind,
            slots,
            pending=pending,
            executing=executing,
            device=device,
            engines=engines,
        )
        return True

    def gone(self, id: InstanceId, incarnation: int) -> bool:
        """The incarnation died or left."""
        if self._known(id, incarnation) is None:
            return self._ignore()
        del self.instances[id]
        return True

    def serving(self, id: InstanceId, incarnation: int, version: int | None, root: bytes = b"") -> bool:
        """Set the weights that it serves from now on; None: none, until the next report."""
        instance = self._known(id, incarnation)
        if instance is None:
            return self._ignore()
        instance.version, instance.root = version, root
        return True

    def draining(self, id: InstanceId, incarnation: int) -> bool:
        """Stop giving it requests."""
        instance = self._known(id, incarnation)
        if instance is None:
            return self._ignore()
        instance.draining = True
        return True

    def suspected(self, id: InstanceId, incarnation: int, suspected: bool) -> bool:
        """It may be dead: it gets no requests until it answers again. It keeps those that it has."""
        instance = self._known(id, incarnation)
        if instance is None:
            return self._ignore()
        instance.suspected = suspected
        return True

    def halved(self, id: InstanceId, incarnation: int, half: bool) -> bool:
        """Half of its engines serve from now on, or all again."""
        instance = self._known(id, incarnation)
        if instance is None:
            return self._ignore()
        instance.half = half
        return True

    def speeds(self, tokens_s: Mapping[InstanceId, float]) -> None:
        """Set the measured speeds of these whole instances, in tokens a second. Nothing is known of the
        others: they count as the median does."""
        middle = median(tokens_s.values()) if tokens_s else 1.0
        for id, instance in self.instances.items():
            speed = tokens_s.get(id, middle) / middle
            instance.speed = SPEED_STEP ** round(log2(speed) / log2(SPEED_STEP)) if speed > 0 else 1.0

    def dispatched(self, id: InstanceId, incarnation: int, count: int) -> bool:
        """`count` requests were sent to it."""
        instance = self._known(id, incarnation)
        if instance is None or count < 1:
            return self._ignore()
        self._dispatches += 1
        instance.pending += count
        instance.chosen = self._dispatches
        return True

    def started(self, id: InstanceId, incarnation: int, count: int = 1) -> bool:
        """`count` pending requests began to decode."""
        instance = self._known(id, incarnation)
        if instance is None or not 1 <= count <= instance.pending:
            return self._ignore()
        instance.pending -= count
        instance.executing += count
        return True

    def ended(self, id: InstanceId, incarnation: int, was_executing: bool, count: int = 1) -> bool:
        """`count` requests left it: finished, aborted or taken back; no more than it has are counted."""
        instance = self._known(id, incarnation)
        left = 0 if instance is None else instance.executing if was_executing else instance.pending
        if instance is None or count < 1 or not left:
            return self._ignore()
        if was_executing:
            instance.executing -= min(count, left)
        else:
            instance.pending -= min(count, left)
        return count <= left or self._ignore()

    def select(self, roots: Mapping[int, bytes], count: int) -> list[InstanceId]:
        """Instances for the next `count` requests, one each; fewer if none has free capacity: the rest waits.

        Only instances that serve one of these versions with its root, do not drain and are not suspected.
        Changes nothing: report what was really sent by `dispatched`. Ties, as between those with free slots,
        go to the one that decodes less, then to the one chosen longest ago, then by name.
        """
        shares = self._shares(roots, count)
        room = {
            instance.id: room
            for instance in self.instances.values()
            if instance.serves(roots) and (room := self._room(instance, shares.get(instance.id)))
        }
        queues = [self._queue(self.instances[id], 0, shares[id].turn) for id in room]  # lines 3-7
        heapify(queues)
        given = dict.fromkeys(room, 0)
        chosen: list[InstanceId] = []
        while queues and len(chosen) < count:
            id = queues[0][-1]  # line 9
            chosen.append(id)
            given[id] += 1
            if given[id] < room[id]:
                heapreplace(queues, self._queue(self.instances[id], given[id], shares[id].turn))
            else:
                heappop(queues)
        return chosen  # lines 11-12: fewer than requested; the manager asks again at the next start or end

    def has_room(self, id: InstanceId, roots: Mapping[int, bytes]) -> bool:
        """Whether it would decode one more request at once."""
        one = self.instances.get(id)
        return one is not None and one.serves(roots) and one.pending + one.executing < one.slots

    def _shares(self, roots: Mapping[int, bytes], count: int) -> dict[InstanceId, Share]:
        """Each instance's share of all requests, including `count` that wait: what it would decode if the
        present instances of a turn had equal work, also those that do not serve yet. An instance that is
        missing in the result has to wait for its turn."""
        there = [one for one in self.instances.values() if not (one.draining or one.suspected)]
        by_turn = turns(sorted(there, key=lambda one: one.preference(roots)), lambda one: one.device)
        left: float = count + sum(one.pending + one.executing for one in self.instances.values())
        served = _devices(one for one in by_turn[0] if one.serves(roots))
        shares: dict[InstanceId, Share] = {}
        for number, turn in enumerate(by_turn):
            speed = sum(one.pace for one in turn)
            for one in sorted(turn, key=lambda one: one.slots / one.pace):
                # What the ones before have no slots for, the others share.
                work = left * one.pace / max(speed, one.pace)
                share = Share(number, min(one.slots, max(0, ceil(work - ROUNDING))))
                if number == 0 or share.requests or not _devices([one]) & served:
                    shares[one.id] = share
                left, speed = left - min(one.slots, work), speed - one.pace
        return shares

    def _queue(
        self, instance: Instance, more: int, turn: int
    ) -> tuple[bool, int, float, float, int, InstanceId]:
        """Position of an instance in the queue order with `more` requests: whether another request would wait
        there, its turn where not, what waits and what is decoded, both in seconds of work."""
        free = max(0, instance.slots - instance.executing)
        pending = instance.pending + more
        waiting, decoding = max(0, pending - free), instance.executing + min(pending, free)
        speed = instance.pace
        waits = pending >= free
        return waits, 0 if waits else turn, waiting / speed, decoding / speed, instance.chosen, instance.id

    def _room(self, instance: Instance, share: Share | None) -> int:
        """How many more it may get: its share, and until Θ are pending; none while it has to wait."""
        if share is None:
            return 0
        at_once = share.requests - instance.executing
        return max(0, max(at_once, self._threshold(instance)) - instance.pending)

    def _threshold(self, instance: Instance) -> int:
        """Θ of an instance."""
        return max(1, round(self.max_pending * min(instance.speed, MOST_SPEED)))

    def _known(self, id: InstanceId, incarnation: int) -> Instance | None:
        instance = self.instances.get(id)
        return instance if instance is not None and instance.incarnation == incarnation else None

    def _ignore(self) -> bool:
        self.ignored += 1
        return False


def _devices(instances: Iterable[Instance]) -> set[str]:
    """The devices that these instances share."""
    return {one.device.name for one in instances if one.device is not None}
