"""Plan: faults of a campaign, drawn from its seed, each on named hosts.

The series is endless. Owns the draws and their ranges. Pure: one seed and one campaign give one series, on
every machine; the effects depend on the real cluster. Durations keep a campaign going: no fault lasts longer
than a peer needs to declare death, and a bit.
"""

import random
from collections.abc import Callable, Collection, Iterator, Sequence

from gleaner.chaos.faults import (
    FROZEN_DEAD_S,
    BadLink,
    CorruptChunk,
    DiskFull,
    Freeze,
    Hang,
    KillHost,
    KillInCommit,
    KillProcess,
    Notice,
    Partition,
    Process,
    Reset,
    Zombie,
)
from gleaner.chaos.real.campaign import Campaign
from gleaner.chaos.real.faults import AnyRealFault, DamagedImage, KillInWeights, MemoryFull, Unplug

HEAD, RESERVED = "head", "reserved-1"
PROCESSES: dict[str, tuple[Process, ...]] = {
    HEAD: ("agent", "rollout", "reward"),
    RESERVED: ("agent", "transfer", "trainer"),
    "preemptible": ("agent", "transfer", "engine"),
}
TRIES = 3  # of a kind that must fire and was missed
SHORT_S, LONG_S = 1.0, 8.0
"""Of cuts and similar faults: below and beyond `liveness.dead_s`, so that both sides of it are tried."""


class Plan:
    """See the module. `preemptible`: names of those hosts."""

    def __init__(self, campaign: Campaign, seed: int, preemptible: Sequence[str]) -> None:
        self._campaign = campaign
        self._rng = random.Random(f"{seed}/{campaign.name}/faults")
        self._pauses = random.Random(f"{seed}/{campaign.name}/pauses")
        self._preemptible = list(preemptible)
        self._hosts = [HEAD, RESERVED, *self._preemptible]
        self._draws: dict[str, Callable[[], AnyRealFault]] = {
            "kill_process": self._kill_process,
            "kill_host": self._kill_host,
            "kill_in_commit": self._kill_in_commit,
            "freeze": self._freeze,
            "zombie": self._zombie,
            "hang": self._hang,
            "partition": self._partition,
            "unplug": lambda: Unplug(at_s=0, host=self._host(), for_s=self._length()),
            "bad_link": self._bad_link,
            "reset": self._reset,
            "notice": lambda: Notice(at_s=0, host=self._spot(), notice_s=self._between(2.0, 6.0)),
            "disk_full": lambda: DiskFull(at_s=0, host=self._host(), for_s=self._between(1.0, 6.0)),
            "corrupt_chunk": lambda: CorruptChunk(at_s=0, host=self._spot(), count=self._rng.randint(1, 4)),
            "damaged_image": lambda: DamagedImage(at_s=0, host=self._spot()),
            "memory_full": lambda: MemoryFull(
                at_s=0, host=self._with_weights(), for_s=self._between(1.0, 6.0)
            ),
            "kill_in_weights": lambda: KillInWeights(at_s=0, host=self._with_weights()),
        }

    def faults(self, fired: Callable[[], Collection[str]] = tuple) -> Iterator[AnyRealFault]:
        """First one fault of each kind that must fire, in an order of the seed's, and again while it has not
        (`fired`: the kinds that did); then by weight, for ever."""
        first = list(self._campaign.must_fire)
        self._rng.shuffle(first)
        for _ in range(TRIES):
            for kind in first:
                if kind not in fired():
                    yield self._draws[kind]()
        drawn = self._campaign.drawn
        while True:
            yield self._draws[self._rng.choices(list(drawn), list(drawn.values()))[0]]()

    def pause_s(self) -> float:
        """Pause before the next fault."""
        return self._pauses.uniform(*self._campaign.pause_s)

    # -- places and numbers --

    def _between(self, low: float, high: float) -> float:
        return round(self._rng.uniform(low, high), 2)

    def _length(self) -> float:
        """Evenly over the scales between the two: short ones are as likely as long ones."""
        return float(round(SHORT_S * (LONG_S / SHORT_S) ** self._rng.random(), 2))

    def _spot(self) -> str:
        return self._rng.choice(self._preemptible)

    def _with_weights(self) -> str:
        return self._spot() if self._rng.random() < 0.5 else RESERVED

    def _host(self) -> str:
        """Preemptible hosts are most of a fleet, so most often one of them."""
        return self._spot() if self._rng.random() < 0.5 else self._rng.choice((HEAD, RESERVED))

    def _place(self) -> tuple[str, Process]:
        host = self._host()
        kinds = PROCESSES.get(host, PROCESSES["preemptible"])
        return host, self._rng.choice(
            (*kinds, "gateway") if host == HEAD and self._campaign.gateway else kinds
        )

    def _two(self) -> tuple[str, str]:
        """Two hosts that communicate with each other."""
        one = self._host()  # preemptible hosts do not communicate with each other
        other = self._rng.choice([host for host in (HEAD, RESERVED, self._spot()) if host != one])
        return (one, other) if other in (HEAD, RESERVED) or one in (HEAD, RESERVED) else (one, HEAD)

    # -- kinds --

    def _kill_process(self) -> AnyRealFault:
        """A process that its supervisor restarts; killing a node agent kills the host."""
        host, process = self._place()
        while process == "agent":
            host, process = self._place()
        return KillProcess(at_s=0, host=host, process=process)

    def _kill_host(self) -> AnyRealFault:
        back_s = 0.0 if self._rng.random() < 0.3 else self._between(0.5, 6.0)
        return KillHost(at_s=0, host=self._host(), back_s=back_s)

    def _kill_in_commit(self) -> AnyRealFault:
        places: list[tuple[str, Process]] = [(HEAD, "rollout"), (HEAD, "agent"), (RESERVED, "agent")]
        host, process = self._rng.choice(places)
        return KillInCommit(at_s=0, host=host, process=process, torn=True)

    def _freeze(self) -> AnyRealFault:
        host, process = self._place()
        return Freeze(at_s=0, host=host, process=process, for_s=self._between(0.2, 4.0))

    def _zombie(self) -> AnyRealFault:
        host, process = self._place()
        return Zombie(
            at_s=0, host=host, process=process, for_s=self._between(FROZEN_DEAD_S, 1.2 * FROZEN_DEAD_S)
        )

    def _hang(self) -> AnyRealFault:
        host, process = self._place()
        return Hang(at_s=0, host=host, process=process)

    def _partition(self) -> AnyRealFault:
        one, other = self._two()
        return Partition(at_s=0, a=one, b=other, both=self._rng.random() < 0.5, for_s=self._length())

    def _bad_link(self) -> AnyRealFault:
        one, other = self._two()
        for_s = self._between(4.0, 8.0)
        if self._rng.random() < 0.3:
            rate = round(10 ** self._rng.uniform(4.7, 6.0))
            return BadLink(at_s=0, a=one, b=other, for_s=for_s, bytes_per_s=rate)
        return BadLink(
            at_s=0,
            a=one,
            b=other,
            for_s=for_s,
            loss=round(self._rng.choice((0.0, 0.01, 0.05)), 3),
            duplicate=round(self._rng.choice((0.01, 0.05, 0.2)), 3),
            delay_s=self._between(0.005, 0.08),
            jitter_s=self._between(0.0, 0.04),
        )

    def _reset(self) -> AnyRealFault:
        one, other = self._two()
        return Reset(at_s=0, a=one, b=other)
