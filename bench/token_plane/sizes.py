"""Sizes of a run, and the result of one measurement."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sizes:
    """Seconds, streams and rows of a run.

    `rows`: requests decoded together on each of `streams` instances. `pace_s`: between two decode steps where
    latency is taken; 45 steps a second is what a real engine does at such widths. `burst`: events that a
    worker of the peer hands to its socket at a time, at full speed.
    """

    rows: tuple[int, ...] = (1, 16, 64, 256)
    streams: int = 4
    senders: int = 2
    ring_frames: int = 256
    seconds: float = 1.5
    warm_s: float = 0.5
    paced_s: float = 1.5
    pace_s: float = 0.022
    repeats: int = 2
    burst: int = 64
    requests: tuple[int, ...] = (1_000, 10_000, 100_000)

    @classmethod
    def quick(cls) -> "Sizes":
        """Sizes for trials, and for the tests of this bench."""
        return cls(
            rows=(1, 64),
            streams=2,
            senders=1,
            seconds=0.4,
            warm_s=0.2,
            paced_s=0.4,
            repeats=1,
            requests=(200,),
        )


@dataclass(frozen=True, slots=True)
class SystemResult:
    """Result of one system at one width: `cpu_s_per_m` are processor seconds of the receiver for a million
    tokens, `router_cpu_s_per_m` of the router; `p50_ms` from sent to visible at the pace of an engine,
    `full_p50_ms` at full speed; `waited`: share of the time in which senders had to wait; `runs`: tokens/s of
    each repeat."""

    system: str
    rows: int
    tokens_per_s: float
    cpu_s_per_m: float
    p50_ms: float
    p99_ms: float
    full_p50_ms: float = float("nan")
    full_p99_ms: float = float("nan")
    router_cpu_s_per_m: float = 0.0
    waited: float = float("nan")
    runs: list[float] = field(default_factory=list)
