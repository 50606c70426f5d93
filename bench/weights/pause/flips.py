"""Flips: new weights for a decoding host, as seen by its users and its operator."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.weights.pause.cluster import Cluster, Host
from bench.weights.pause.load import ThroughManager
from bench.weights.pause.timeline import Timeline

FIRST_S = 120.0  # until a version's first token
LOOK_S = 0.005


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of decoding before each version, for the usual step time, and after it, until every request's
    silence is over."""

    steady_s: float = 2.5
    after_s: float = 1.5


@dataclass(frozen=True, slots=True)
class Flip:
    """One version, received by `way`, as seen by the users of `engine`. Seconds.

    `pause_s`: the longest silence of any request; `usual_s`: the longest one just before, a decode step.
    `lag_s`: from the trainer's call, its image written, to the first token of the new version. Of it:
    `describe_s`, `fetch_s` (in it `pull_s`), `stage_s` (while it decodes), `wait_s` (for the present step),
    `still_s` (the engine only loads), and the rest: messages under way, the caches of the requests made anew,
    a step. `before`, `during`, `after`: tokens a second, just before, from the call to the first token of the
    new version, and after that.
    """

    engine: str
    way: str
    pause_s: float
    usual_s: float
    lag_s: float
    before: float
    during: float
    wrote_s: float = 0.0
    describe_s: float = 0.0
    fetch_s: float = 0.0
    pull_s: float = 0.0
    pulled_mb: float = 0.0
    stage_s: float = 0.0
    wait_s: float = 0.0
    still_s: float = 0.0


async def first_of(timeline: Timeline, version: str, look: Callable[[], None], since: int = 0) -> float:
    """Time of its first token, of those from number `since` on; waits for it. Raises TimeoutError, and the
    errors of `look`."""
    until_s = time.monotonic() + FIRST_S
    while (first_s := timeline.first_s(version, since)) is None:
        look()
        if time.monotonic() > until_s:
            raise TimeoutError(f"no token of version {version} after {FIRST_S:.0f} s")
        await asyncio.sleep(LOOK_S)
    return first_s


async def flip(
    cluster: Cluster, host: Host, load: ThroughManager, engine: str, share: float, times: Times
) -> Flip:
    """Publish the next version and measure its arrival."""
    timeline = load.timeline
    began_s = time.monotonic()
    await asyncio.sleep(times.steady_s)
    steady_s = time.monotonic()
    published = await cluster.publish(share)
    first_s = await first_of(timeline, str(published.version), load.look)
    await asyncio.sleep(times.after_s)
    figures = await cluster.figures(host, "engine", host.instance)

    def of(name: str) -> float:
        return float(figures[name])

    return Flip(
        engine=engine,
        way="all changed" if share == 1 else f"{100 * share:g} % changed",
        pause_s=timeline.longest_gap_s(published.called_s, first_s),
        usual_s=timeline.longest_gap_s(began_s, steady_s),
        lag_s=first_s - published.called_s,
        before=timeline.rate(began_s, steady_s),
        during=timeline.rate(published.called_s, first_s),
        wrote_s=published.wrote_s,
        describe_s=published.described_s - published.called_s,
        fetch_s=of("fetched_s"),
        pull_s=of("pulled_s"),
        pulled_mb=of("pulled_mb"),
        stage_s=of("staged_s"),
        wait_s=of("waited_s"),
        still_s=of("paused_s"),
    )
