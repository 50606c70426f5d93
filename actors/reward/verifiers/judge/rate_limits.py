"""`RateLimits`: token buckets for the calls and the tokens of a minute. Pure: times are arguments.

A reservation returns the wait until it may be used. Reservations are used in the order in which they were
made. In a span of `t` seconds, its first use not counted, at most the limit for `t + BURST_S` seconds is
used, or the limit for `t` seconds and 1 if that is more.
"""

from collections.abc import Mapping

MINUTE_S = 60.0
BURST_S = 1.0
"""What a bucket holds at most: the limit of this time."""


class Bucket:
    """A token bucket that is full at time `at_s`. per_minute: its limit, above 0."""

    def __init__(self, per_minute: float, at_s: float) -> None:
        self._per_s = per_minute / MINUTE_S
        self._most = max(self._per_s * BURST_S, 1.0)
        self._left, self._at_s = self._most, at_s

    def ready_s(self, amount: float, at_s: float) -> float:
        """The time from which on it holds this amount, at the earliest at_s or the last reservation's."""
        left = self._left_at(at_s, amount)
        return max(at_s, self._at_s) + max(amount - left, 0.0) / self._per_s

    def take(self, amount: float, at_s: float) -> None:
        """Use an amount; a negative one gives back what was reserved and not used."""
        self._left = min(self._left_at(at_s, amount) - amount, self._most)
        self._at_s = max(at_s, self._at_s)

    def _left_at(self, at_s: float, amount: float) -> float:
        """What it holds; it fills up to more than usual for an amount that is larger."""
        gained = max(at_s - self._at_s, 0.0) * self._per_s
        return min(self._left + gained, max(self._most, amount))


class RateLimits:
    """Limits of calls and tokens in a minute; 0 for no limit. now_s: a time at which nothing is used."""

    def __init__(self, calls_per_minute: float, tokens_per_minute: float, now_s: float) -> None:
        limits = {"calls": calls_per_minute, "tokens": tokens_per_minute}
        self._buckets: Mapping[str, Bucket] = {
            name: Bucket(limit, now_s) for name, limit in limits.items() if limit > 0
        }

    def reserve(self, calls: int, tokens: int, now_s: float, by_s: float) -> float | None:
        """The seconds until these calls may be made; None, and nothing is reserved, if that is after by_s."""
        amounts = {"calls": calls, "tokens": tokens}
        at_s = max((one.ready_s(amounts[name], now_s) for name, one in self._buckets.items()), default=now_s)
        if at_s > by_s:
            return None
        for name, one in self._buckets.items():
            one.take(amounts[name], at_s)
        return at_s - now_s

    def correct(self, tokens: int, now_s: float) -> None:
        """A call used so many tokens more than were reserved; fewer if negative."""
        if "tokens" in self._buckets:
            self._buckets["tokens"].take(tokens, now_s)
