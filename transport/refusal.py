"""Refusals: typed decoder errors (FrameError), and one counter of refused bytes.

Owns the family of `FrameError` that every decoder of this layer raises, and `Refusals`, which counts by
reason and logs once per source and reason. Does not decode anything and never raises.
"""

import logging
from collections import Counter

log = logging.getLogger("transport")

LOGGED_SOURCES = 4096  # (source, reason) pairs remembered as logged; beyond it refusals are only counted


class FrameError(Exception):
    """Received bytes were refused. `reason` is a short, stable key for counters."""

    reason = "bad-frame"


class Truncated(FrameError):
    """The bytes end before the value that they announce."""

    reason = "truncated"


class NotAnEnvelope(FrameError):
    """The bytes are something else: no MessagePack, no array, or without our magic."""

    reason = "not-ours"


class UnknownVersion(FrameError):
    """The sender uses a major version that this process does not support."""

    reason = "unknown-version"

    def __init__(self, what: str, theirs: int, ours: int) -> None:
        super().__init__(
            f"{what} of major version {theirs}, this process speaks {ours}: run the same release on both ends"
        )
        self.theirs = theirs
        self.ours = ours


class Oversize(FrameError):
    """A frame is longer than the limit of its wire."""

    reason = "oversize"


class BadField(FrameError):
    """Well-formed, but a field has the wrong type or a value outside its range."""

    reason = "bad-field"


class WrongParts(FrameError):
    """A message has another number of parts than its wire prescribes."""

    reason = "wrong-parts"


class Refusals:
    """Counts refused input by reason; logs the first of each (source, reason)."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.by_reason: Counter[str] = Counter()
        self._logged: set[tuple[str, str]] = set()

    def count(self, source: str, reason: str, detail: str) -> None:
        """Record one refusal. `source` names the peer as well as it is known."""
        self.by_reason[reason] += 1
        key = (source, reason)
        if key not in self._logged and len(self._logged) < LOGGED_SOURCES:
            self._logged.add(key)
            log.warning(
                "refused input at %s from %s (%s): %s; further ones of this kind are only counted",
                self.where,
                source,
                reason,
                detail,
            )
