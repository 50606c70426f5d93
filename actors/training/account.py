"""The account of a run: seconds of hosts and devices by price class, what they went to, what was made of it.

Owns the sums and how records change them. Pure: records of a history go in, in their order. The controller,
the live view, the report and what-ifs all count by this room.

Prices are of hosts, in money an hour, from the settings; what a device costs follows from how many a host
has. A reserved host is paid for as long as the run lasts, a preemptible one from when it joined until it
went; one that handed its work over and was never heard of again, until then. The head is not charged.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from msgspec.structs import replace

from actors.training.records import AnyRecord, End, Node, Run, Sample, Step
from actors.training.used import Used

PARTS = ("seeding", "waiting", "training", "weights", "recovery", "evaluation")


@dataclass(slots=True)
class _Host:
    """A preemptible host that is up. late_s: seconds since it was drained; they count once it is gone."""

    devices: int
    drained: bool = False
    late_s: float = 0.0


@dataclass(slots=True)
class Meter:
    """Adds a run up, record by record; as large as the fleet. `used` is the sum so far, to be read.

    reserved: hosts of that class, which are paid from the first second on, whenever they join.
    """

    reserved: int = 1
    used: Used = field(default_factory=Used)
    _hosts: dict[str, _Host] = field(default_factory=dict)
    _reserved_devices: dict[str, int] = field(default_factory=dict)
    _look: Sample | None = None

    def observe(self, record: AnyRecord) -> None:
        """Take one record, in the order of the history."""
        used = self.used
        self.advance(record.t_s)
        match record:
            case Run():
                self._hosts.clear()
                self._look = None
                fleet = record.config.get("fleet")
                if isinstance(fleet, dict) and isinstance(fleet.get("reserved"), int):
                    self.reserved = fleet["reserved"]
            case Node():
                self._node(record)
            case Sample():
                self._look = record
                used.collected, used.twice = record.tokens_collected, record.generated_twice
                used.wasted = dict(record.wasted)
            case Step() if record.step > used.steps:
                used.steps = record.step
                used.trained += record.tokens
                devices = self._devices_of_reserved()
                for name in PARTS:
                    seconds = getattr(record, f"{name}_s")
                    used.parts_s[name] = used.parts_s.get(name, 0.0) + seconds * devices
            case End():
                used.collected, used.twice = record.tokens_collected, record.tokens_generated_twice
                used.wasted = dict(record.wasted) or used.wasted
            case _:
                pass

    def advance(self, t_s: float) -> None:
        """Time passes; what is up is used."""
        used = self.used
        span_s = t_s - used.elapsed_s
        if span_s <= 0:
            return
        used.elapsed_s = t_s
        used.reserved_s += span_s * self.reserved
        used.reserved_devices_s += span_s * self._devices_of_reserved()
        for host in self._hosts.values():
            if host.drained:
                host.late_s += span_s
            else:
                self._count(host, span_s)
        look = self._look
        if look is not None and look.busy is not None and look.preemptible:
            devices_s = span_s * sum(host.devices for host in self._hosts.values())
            used.looked_s += devices_s
            used.busy_s += devices_s * min(1.0, look.busy / look.preemptible)

    def _devices_of_reserved(self) -> float:
        """Of all that are paid for; those that have not joined are like the others."""
        known = self._reserved_devices.values()
        return self.reserved * (sum(known) / len(known) if known else 1.0)

    def _node(self, record: Node) -> None:
        if record.role != "preemptible":
            if record.event == "joined":
                self._reserved_devices[record.node] = record.devices
            return
        host = self._hosts.get(record.node)
        if record.event == "joined":
            self._hosts[record.node] = _Host(record.devices)
        elif host is not None and record.event == "drained":
            host.drained = True
        elif host is not None and record.event == "spared":
            self._count(host, host.late_s)
            host.drained, host.late_s = False, 0.0
        elif host is not None and record.event in ("killed", "left"):
            self._count(host, host.late_s)
            del self._hosts[record.node]

    def _count(self, host: _Host, span_s: float) -> None:
        self.used.preemptible_s += span_s
        self.used.preemptible_devices_s += span_s * host.devices


def used_between(records: Sequence[AnyRecord], spans: Sequence[tuple[float, float]]) -> list[Used]:
    """What was used in each span of time (begin and end, s): a record counts at its own moment, so a step
    counts in the span that ends with it."""
    marks = dict.fromkeys(sorted({t_s for span in spans for t_s in span}))
    found: dict[float, Used] = {}
    meter, rest = Meter(), iter(sorted(records, key=lambda record: record.t_s))
    record = next(rest, None)
    for mark in marks:
        while record is not None and record.t_s <= mark:
            meter.observe(record)
            record = next(rest, None)
        meter.advance(mark)
        found[mark] = meter.used.copy()
    return [found[end_s].since(found[begin_s]) for begin_s, end_s in spans]


def spans_of(steps: Sequence[Step]) -> Iterator[tuple[float, float]]:
    """From begin to end of each of these `whole_steps`, in seconds of the run."""
    for step in steps:
        yield max(0.0, step.t_s - step.step_s), step.t_s


def whole_steps(records: Iterable[AnyRecord]) -> list[Step]:
    """Each step once, the newest record of it, in order; from the end of the one before to its own.

    The records of this program are so. In those of older ones `step_s` begins anew with each attempt: what
    lies between the end of one step and the begin of the next belongs to the next one, and to none of its
    parts.
    """
    newest = {record.step: record for record in records if isinstance(record, Step)}
    steps = [newest[step] for step in sorted(newest)]
    whole = [replace(step, step_s=step.t_s - before.t_s) for before, step in pairwise(steps)]
    return [*steps[:1], *whole]
