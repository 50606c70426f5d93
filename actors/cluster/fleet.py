"""`FleetPolicy`: preemptible hosts on offer (a trace), bounded by N_prem.

Pure: inputs are times, exits and N_prem; outputs are starts, notices and kills. As in RLBoost (4.2), no host
is allocated while there are N_prem hosts, even if more are on offer, and a surplus is never killed. Every
allocated host runs until the offer is withdrawn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gleaner.configs.trace import Availability, Event

RESERVED = "reserved-1"
"""The reserved host of a fleet that the head starts itself."""
FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 30.0
STEADY_S = 60.0  # a host that lived this long fails for the first time again


@dataclass(frozen=True, slots=True)
class StartHost:
    """Bring this host up."""

    name: str


@dataclass(frozen=True, slots=True)
class NoticeHost:
    """Notify this host that it goes away `deadline_s` from now."""

    name: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class KillHost:
    """The offer is withdrawn: kill this host without notice."""

    name: str


FleetAction = StartHost | NoticeHost | KillHost


@dataclass(slots=True)
class _Offer:
    gone_at_s: float = math.inf  # of a noticed host: its removal, on the trace's clock
    left: bool = False  # it left by itself; wait until it is offered anew
    failures: int = 0
    not_before_s: float = 0.0

    @property
    def noticed(self) -> bool:
        return self.gone_at_s < math.inf


class FleetPolicy:
    """Offers in the order of their arrival, and the running hosts.

    Args:
        availability: the trace; None offers `n_prem_max` hosts for ever.
        n_prem_max: most hosts at a time, for any N_prem.
        notice_s: from a notice to the end, where the trace names no removal.
        begin_s: the trace's time at which this policy takes over; earlier events are not replayed.
        running: hosts that run already. Those beyond `n_prem_max`, which nothing can have started, do not
            count: `found` gives them back.
    """

    def __init__(
        self,
        availability: Availability | None,
        *,
        n_prem_max: int,
        notice_s: float,
        begin_s: float = 0.0,
        running: Sequence[str] = (),
    ) -> None:
        self._availability = availability
        self._notice_s = notice_s
        self._n_prem_max = n_prem_max
        self._offers: dict[str, _Offer] = {}
        self._running: dict[str, float] = dict.fromkeys(running, 0.0)
        self._withdrawn: set[str] = set()  # running ones that are being taken away
        self._seen_s = 0.0
        self.n_prem = n_prem_max  # until a plan changes it
        if availability is None:
            self._offers = {f"spot-{number}": _Offer() for number in range(1, n_prem_max + 1)}
        self.advance(begin_s)
        by_offer = sorted(running, key=lambda name: name not in self._offers)
        for name in by_offer[n_prem_max:]:  # a cloud delivered it unasked while the head was away
            del self._running[name]
            self._withdrawn.discard(name)

    @property
    def follows_trace(self) -> bool:
        """Whether what is on offer depends on the trace's time."""
        return self._availability is not None

    @property
    def running(self) -> list[str]:
        """Hosts that were started and have not ended."""
        return list(self._running)

    @property
    def on_offer(self) -> list[str]:
        """Hosts that are available."""
        return [name for name, offer in self._offers.items() if not offer.noticed]

    def advance(self, trace_s: float) -> list[FleetAction]:
        """The trace's clock shows `trace_s`: the actions that its events up to now require."""
        actions: list[FleetAction] = []
        after_s = math.nextafter(trace_s, math.inf)
        if self._availability is not None:
            for event in self._availability.events_between(self._seen_s, after_s):
                if event.event is Event.ADD:
                    self._offers[event.instance] = _Offer()
                elif event.event is Event.NOTICE:
                    actions += self._notice(event.instance, event.t_s, trace_s)
                else:
                    actions += self._withdraw(event.instance)
            self._seen_s = after_s
        for name in [name for name, offer in self._offers.items() if offer.gone_at_s <= trace_s]:
            actions += self._withdraw(name)
        return actions

    def allocate(self, now_s: float) -> list[StartHost]:
        """Which hosts to start now; each counts as running from here on."""
        starts: list[StartHost] = []
        for name, offer in self._offers.items():
            if len(self._running) >= min(self.n_prem, self._n_prem_max):
                break
            waits = offer.noticed or offer.left or now_s < offer.not_before_s
            if name not in self._running and not waits:
                self._running[name] = now_s
                starts.append(StartHost(name))
        return starts

    def found(self, hosts: Sequence[str], now_s: float) -> list[KillHost]:
        """These hosts run. One that was not started here counts as running from here on, and goes back at
        once where more run than are wished for."""
        actions: list[KillHost] = []
        for name in hosts:
            if name in self._running:
                continue
            self._running[name] = now_s
            if len(self._running) - len(self._withdrawn) > min(self.n_prem, self._n_prem_max):
                self._withdrawn.add(name)
                actions.append(KillHost(name))
        return actions

    def exited(self, name: str, now_s: float, *, in_order: bool) -> None:
        """A host has ended: because it was killed or noticed, `in_order` by itself, or by a failure."""
        started_s = self._running.pop(name, now_s)
        offer = self._offers.get(name)
        expected = name in self._withdrawn
        self._withdrawn.discard(name)
        if expected or offer is None or offer.noticed:
            return
        if in_order and self._availability is not None:
            offer.left = True
            return
        offer.failures = 1 if now_s - started_s > STEADY_S else offer.failures + 1
        offer.not_before_s = now_s + min(FIRST_BACKOFF_S * 2.0 ** (offer.failures - 1), MAX_BACKOFF_S)

    def _notice(self, name: str, at_s: float, trace_s: float) -> list[FleetAction]:
        gone_at_s = self._removal(name, at_s)
        self._offers.setdefault(name, _Offer()).gone_at_s = gone_at_s
        if name not in self._running:
            return []
        return [NoticeHost(name, max(0.0, gone_at_s - trace_s))]

    def _removal(self, name: str, notice_s: float) -> float:
        """The time at which a noticed host goes, on the trace's clock."""
        assert self._availability is not None
        for event in self._availability.events_between(notice_s, math.inf):
            if event.instance == name and event.event is Event.REMOVE:
                return event.t_s
        return notice_s + self._notice_s

    def _withdraw(self, name: str) -> list[FleetAction]:
        self._offers.pop(name, None)
        if name not in self._running or name in self._withdrawn:
            return []
        self._withdrawn.add(name)
        return [KillHost(name)]
