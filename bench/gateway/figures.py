"""Figures of one load through one front. Pure."""

import statistics
from dataclasses import dataclass

from bench.gateway.client import LoadResult


@dataclass(frozen=True, slots=True)
class Figures:
    """lost: requests that ended in an error or without their last token. killed: one of the servers was
    killed in the middle."""

    servers: str
    front: str
    together: int
    tokens_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    cpu_s_per_m: float
    lost: int
    killed: bool


def figures(
    servers: str, front: str, together: int, seen: LoadResult, cpu_s: float, *, killed: bool
) -> Figures:
    """Figures from the client's result, and the processor seconds of the front meanwhile."""
    ttft_s = sorted(seen.ttft_s) or [float("nan")]
    return Figures(
        servers,
        front,
        together,
        tokens_per_s=seen.tokens / seen.seconds,
        ttft_p50_s=statistics.median(ttft_s),
        ttft_p99_s=ttft_s[min(len(ttft_s) - 1, int(0.99 * len(ttft_s)))],
        cpu_s_per_m=cpu_s / seen.tokens * 1e6 if seen.tokens else float("nan"),
        lost=len(seen.errors) + seen.broken,
        killed=killed,
    )
