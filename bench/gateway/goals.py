"""Goals of the gateway beside the router, with a verdict on a run. Pure."""

from collections.abc import Sequence

from bench.gateway.figures import Figures
from bench.gateway.fronts import OURS, ROUTER

MOST_CPU, MOST_TTFT = 2.0, 4.0
"""Of the router's, at the largest number of concurrent streams."""
GOALS = ("goal", "measured", "verdict")


def goals(found: Sequence[Figures]) -> list[tuple[str, str, str]]:
    """A line for each goal and kind of servers, at the largest measured number of concurrent streams."""
    most = max(one.together for one in found)
    at = {(one.servers, one.front, one.killed): one for one in found if one.together == most}
    lines: list[tuple[str, str, str]] = []
    for servers in dict.fromkeys(one.servers for one in found):
        ours, router = at[servers, OURS, False], at[servers, ROUTER, False]
        lost, others = at[servers, OURS, True].lost, at[servers, ROUTER, True].lost
        cpu, ttft = ours.cpu_s_per_m / router.cpu_s_per_m, ours.ttft_p50_s / router.ttft_p50_s
        speed = ours.tokens_per_s / router.tokens_per_s
        where, summary = f"{servers}, {most} streams: ", f"{lost} lost (router: {others})"
        lines += [
            _line(f"{where}at most {MOST_CPU:g}x the router's CPU", f"{cpu:.2f}x", cpu <= MOST_CPU),
            _line(f"{where}at least the router's tokens/s", f"{speed:.2f}x", speed >= 1),
            _line(f"{where}first token p50 at most {MOST_TTFT:g}x", f"{ttft:.2f}x", ttft <= MOST_TTFT),
            _line(f"{where}a server is killed, nothing is lost", summary, lost == 0),
        ]
    return lines


def _line(goal: str, measured: str, met: bool) -> tuple[str, str, str]:
    return goal, measured, "met" if met else "NOT met"
