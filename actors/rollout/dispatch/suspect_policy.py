"""Suspects: single requests that may kill engines, and those that surely do. Pure.

Owns the counting of deaths. There is no limit on attempts: hosts die in numbers, and a request is not at
fault for where it was. A death counts against a request only if

- its instance died unasked (it was not asked to leave, and its host had no notice),
- within `SOON_S` of being sent the request, and
- the request had got no token there: a request that gets tokens progresses, however slowly.

After `SUSPECT_AFTER` such deaths in a row it is a *suspect*: it runs alone from then on, on an instance that
has nothing else (`quarantine`). It is ended only after `LONE_DEATHS` such deaths in a row. For each of them
the instance must have had no other request, and no other instance may have died since the request was sent.
So no request is ended for its neighbours, nor by a storm that takes several instances. A token from any
engine clears all counts.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

SUSPECT_AFTER = 2
LONE_DEATHS = 3
SOON_S = 30.0
"""A request that kills an engine does so as its first token is made; a host is taken at any time."""
MAX_KNOWN = 4096
"""Requests whose deaths are remembered; beyond, the one that has been known for longest is forgotten."""


@dataclass(slots=True)
class _Record:
    """Deaths in a row; those of them that found the request alone; its tokens at that time."""

    deaths: int = 0
    lone: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class SuspectRequest:
    """A request on an instance that died. tokens: in its log; here: it got some there. sent_s: when it was
    sent there."""

    tokens: int
    here: bool
    sent_s: float


class Suspects:
    """See the module."""

    def __init__(self) -> None:
        self._known: dict[str, _Record] = {}
        self._died: tuple[str, float] = "", -1.0  # the last instance that died, and when
        self._other: tuple[str, float] = "", -1.0  # the last one of another name

    def died(
        self, instance: str, now_s: float, held: Mapping[str, SuspectRequest], singles: Set[str]
    ) -> list[str]:
        """An instance died unasked with these requests on it, of which `singles` can be suspects. Returns
        those to end."""
        ended: list[str] = []
        for request in sorted(singles & held.keys()):
            one = held[request]
            if one.here:
                self._known.pop(request, None)
                continue
            if now_s - one.sent_s > SOON_S:
                continue
            record = self._record(request, one.tokens)
            record.deaths += 1
            if len(held) > 1:
                record.lone = 0
            elif self._calm(instance, one.sent_s):
                record.lone += 1
                if record.lone >= LONE_DEATHS:
                    ended.append(request)
        if self._died[0] != instance:
            self._other = self._died
        self._died = instance, now_s
        return ended

    def suspect(self, request: str, tokens: int) -> bool:
        """Whether the request, with its present number of tokens, has to run alone."""
        known = self._known.get(request)
        return known is not None and known.tokens == tokens and known.deaths >= SUSPECT_AFTER

    def forget(self, request: str) -> None:
        """The request is over."""
        self._known.pop(request, None)

    def _record(self, request: str, tokens: int) -> _Record:
        known = self._known.pop(request, None)
        if known is None or known.tokens != tokens:
            known = _Record(tokens=tokens)
        self._known[request] = known  # as the newest
        while len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return known

    def _calm(self, instance: str, since_s: float) -> bool:
        """Whether no instance of another name has died since then."""
        name, when_s = self._other if self._died[0] == instance else self._died
        return not name or when_s < since_s
