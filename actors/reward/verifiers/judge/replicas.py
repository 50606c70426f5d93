"""`Replicas`: which of several servers of one model gets a call, its repetition, its hedge. Pure.

The one with the fewest open calls. A server that gave a `Retry-After` gets no call before; one that failed is
avoided for a time that doubles with each such time in a row, as long as another one is up.
"""

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_AVOIDED_S, LONGEST_AVOIDED_S = 0.5, 30.0


@dataclass(slots=True)
class _Replica:
    url: str
    open: int = 0
    failures: int = 0  # in a row; those of calls that failed together are one
    avoided_until_s: float = 0.0
    closed_until_s: float = 0.0  # by its Retry-After


class Replicas:
    """The servers of a judge, in the order of the settings. Times are those of one clock."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._all = {url: _Replica(url) for url in urls}

    def pick(self, now_s: float, failed: str = "") -> str:
        """The server of the next call. failed: the one where this call failed, which is avoided."""

        def rank(one: _Replica) -> tuple[float, bool, bool, int]:
            avoided = one.avoided_until_s > now_s
            return max(one.closed_until_s - now_s, 0.0), avoided, one.url == failed, one.open

        return min(self._all.values(), key=rank).url

    def spare(self, now_s: float, busy: str) -> str | None:
        """The server of a hedge for a call that is open at `busy`; None: no other one is up."""
        up = [
            one
            for one in self._all.values()
            if one.url != busy and max(one.avoided_until_s, one.closed_until_s) <= now_s
        ]
        return min(up, key=lambda one: one.open).url if up else None

    def closed_s(self, url: str, now_s: float) -> float:
        """For how long a server takes no calls."""
        return max(self._all[url].closed_until_s - now_s, 0.0)

    def opened(self, url: str) -> None:
        """A call began."""
        self._all[url].open += 1

    def closed(self, url: str) -> None:
        """A call ended, in whatever way."""
        self._all[url].open -= 1

    def answered(self, url: str) -> None:
        """A call was answered: the server is up."""
        self._all[url].failures = 0

    def failed(self, url: str, now_s: float, after_s: float = 0.0) -> None:
        """A call failed. after_s: the server's `Retry-After`, 0 for none."""
        one = self._all[url]
        if now_s >= one.avoided_until_s:
            one.failures += 1
            avoided_s = min(FIRST_AVOIDED_S * 2.0 ** min(one.failures - 1, 30), LONGEST_AVOIDED_S)
            one.avoided_until_s = now_s + avoided_s
        one.closed_until_s = max(one.closed_until_s, now_s + after_s)
