"""`Meter`: cost account of a run, from the records of its history.

The account has the seconds of hosts and devices by price class, their use, and the tokens made. Owns the sums
and their changes by records. Pure: records of a history go in, in their order. The controller, the live view,
the report and what-ifs all use this module.

Prices are of hosts, in money an hour, from the settings; the price of a device follows from the number per
host. A reserved host is paid for as long as the run lasts, a preemptible one from its join until its end. A
host that was drained and never reported again is paid for until its drain. The head is not charged.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from msgspec.structs import replace

from gleaner.actors.training.records import AnyRecord, End, Node, Run, Sample, Step
from gleaner.actors.training.usage import ResourceUsage

PARTS = ("seeding", "waiting", "training", "weights", "recovery", "evaluation")


@dataclass(slots=True)
class _Host:
    """A preemptible host that is up. late_s: seconds since it was drained; they count once it is gone."""

    devices: int
    drained: bool = False
    late_s: float = 0.0


@dataclass(slots=True)
class Meter:
    """Sums up a run, record by record, in memory proportional to the fleet. `used` is the sum so far; read
    only.

    reserved: hosts of that class, which are paid from the first second on, whenever they join.
    """

    reserved: int = 1
    used: ResourceUsage = field(default_factory=ResourceUsage)
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
        """Advance time; hosts that are up are counted."""
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
        """The devices of all reserved hosts that are paid for; hosts that have not joined count like the
        others.
        """
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


def used_between(records: Sequence[AnyRecord], spans: Sequence[tuple[float, float]]) -> list[ResourceUsage]:
    """The use in each span of time (start and end, s): a record counts at its own moment, so a step counts in
    the span that ends with it."""
    marks = dict.fromkeys(sorted({t_s for span in spans for t_s in span}))
    found: dict[float, ResourceUsage] = {}
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
    """The span of each of these `whole_steps`, from start to end, in seconds of the run."""
    for step in steps:
        yield max(0.0, step.t_s - step.step_s), step.t_s


def whole_steps(records: Iterable[AnyRecord]) -> list[Step]:
    """The newest record of each step, in order; each step lasts from the end of the previous one to its own.

    Records of this program have that form. In those of older ones `step_s` starts anew with each attempt: the
    time between the end of one step and the start of the next belongs to the next one, and to none of its
    parts.
    """
    newest = {record.step: record for record in records if isinstance(record, Step)}
    steps = [newest[step] for step in sorted(newest)]
    whole = [replace(step, step_s=step.t_s - before.t_s) for before, step in pairwise(steps)]
    return [*steps[:1], *whole]
