"""Cases of waves: joins, links, events, and limits of the time."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.weights.wave_model import spread
from bench.weights.wave_world import RECEIVER_BYTES_S, Event, Outcome, World

SLOW_BYTES_S = 1.25e9  # 10 Gbps
PLAIN = World()
FAR = replace(PLAIN, crossing_bytes_s=SLOW_BYTES_S)
ONE_SLOT = replace(PLAIN, origin_bytes_s=RECEIVER_BYTES_S)
DELTA = replace(PLAIN, payload_bytes=250_000_000, chunk_bytes=4_000_000)  # 1 % of 16 GB changed
SEED = 1


@dataclass(frozen=True, slots=True)
class Case:
    """`judged`: the receivers, by the prefix of their names, whose longest time must not be above `at_most`
    times that of one receiver alone. `copies`: at most so many may cross to another site. 0: no bound."""

    name: str
    world: World
    events: tuple[Event, ...]
    at_most: float = 0.0
    judged: str = ""
    copies: float = 0.0
    starred: bool = False  # it is compared with a star

    @property
    def alone_s(self) -> float:
        """The time of one receiver alone, over its site's link."""
        return self.world.payload_bytes / min(RECEIVER_BYTES_S, self.world.crossing_bytes_s)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Result of a case. `judged_s`: the longest time of the judged receivers; `star_s`: when the last one has
    everything where all pull from the origin, 0: not modelled."""

    case: Case
    outcome: Outcome
    judged_s: float
    star_s: float

    @property
    def times_alone(self) -> float:
        """The judged time as a multiple of the time of one receiver alone."""
        return self.judged_s / self.case.alone_s

    @property
    def copies(self) -> float:
        """Copies that crossed to the site with the most."""
        return max(self.outcome.crossed_bytes.values(), default=0) / self.case.world.payload_bytes

    @property
    def met(self) -> bool:
        """Whether the bounds hold, where there are any."""
        in_time = not self.case.at_most or self.times_alone <= self.case.at_most
        return in_time and (not self.case.copies or self.copies <= self.case.copies)


def joining(count: int, name: str = "r", **more: float | str) -> tuple[Event, ...]:
    """Events of so many receivers that all join at once: r0, r1, ..."""
    return tuple(Event(0.0, "join", f"{name}{number}", **more) for number in range(count))  # type: ignore[arg-type]


def _apart(count: int, kind: str, step: int) -> tuple[Event, ...]:
    """Three of so many, half a second one after the other: of three chains (step 1), or down one chain."""
    ends = (Event(0.7 + 0.5 * turn, kind, f"r{step * turn}") for turn in range(3))  # type: ignore[arg-type]
    return (*joining(count), *ends)


def cases() -> tuple[Case, ...]:
    """All of them."""
    rng = random.Random(SEED)
    arriving = tuple(Event(rng.uniform(0, 5), "join", f"r{number}") for number in range(32))
    two_sites = joining(8) + joining(8, "far", site="far")
    slow = joining(28, "r") + joining(4, "slow", rate_bytes_s=SLOW_BYTES_S)
    return (
        *(
            Case(
                f"{count} receivers" if count > 1 else "one receiver",
                PLAIN,
                joining(count),
                at_most,
                starred=True,
            )
            for count, at_most in ((1, 1.1), (4, 1.1), (16, 1.1), (64, 1.2))
        ),
        *(
            Case(f"{count}, three {words}", PLAIN, _apart(count, kind, step), at_most)
            for count in (16, 64)
            for words, kind, step, at_most in (
                ("processes killed, of three chains", "kill", 1, 1.6),
                ("processes killed, down one chain", "kill", 4, 1.6),
                ("hosts silent, of three chains", "vanish", 1, 1.6),
                ("hosts silent, down one chain", "vanish", 4, 1.6),
            )
        ),
        *(
            Case(f"16 in one chain, three {words}", ONE_SLOT, _apart(16, kind, 1), at_most)
            for words, kind, at_most in (("processes killed", "kill", 1.6), ("hosts silent", "vanish", 1.7))
        ),
        Case("16, three lie, of three chains", PLAIN, _apart(16, "lie", 1), 1.2),
        Case("16, three get notice, of three chains", PLAIN, _apart(16, "drain", 1), 1.2),
        Case("16, and one that joins after 1.3 s", PLAIN, (*joining(16), Event(1.3, "join", "late")), 1.1),
        Case("32 that join within 5 s", PLAIN, arriving, 1.1),
        Case("28, and 4 with 10 Gbps: the 28", PLAIN, slow, 1.1, judged="r"),
        Case("8, and 8 behind 10 Gbps", FAR, two_sites, 1.1, copies=1.01, starred=True),
        Case(
            "the same, cross-site puller silent after 6 s",
            FAR,
            (*two_sites, Event(6.0, "vanish", "far0")),
            1.1,
            copies=1.01,
        ),
        Case("a delta of 0.25 GB to 16", DELTA, joining(16), starred=True),
        Case("a delta of 0.25 GB to 64", DELTA, joining(64), starred=True),
    )


def tell(case: Case) -> CaseResult:
    """Run the case."""
    outcome = spread(case.world, case.events)
    judged = max(took_s for name, took_s in outcome.took_s.items() if name.startswith(case.judged))
    star_s = spread(replace(case.world, star=True), case.events).last_s if case.starred else 0.0
    return CaseResult(case, outcome, judged, star_s)


def coarse(some: Sequence[Case], chunk_bytes: int) -> tuple[Case, ...]:
    """The same cases with larger chunks: faster to model, and slower waves."""
    return tuple(replace(case, world=replace(case.world, chunk_bytes=chunk_bytes)) for case in some)
