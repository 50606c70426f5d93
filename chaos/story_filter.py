"""StoryFilter: the facts of a run that concern a request, a host or an actor.

Owns the choice. Rows of frames name tickets only; the filter learns from the dispatches which tickets of an
instance are the request's. Pure.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from gleaner.actors.rollout.state.events import Dispatched, FrameLogged
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed


@dataclass(slots=True)
class StoryFilter:
    """Shows what fits all of these; "" leaves a choice open.

    Args:
        request: its id, as `step-2/4/1`; `step-2/4` is a whole group, `step-2` a batch.
        host: its name, as `spot-1`.
        actor: its name, as `rollout/manager`, or that of a stream.
    """

    request: str = ""
    host: str = ""
    actor: str = ""
    _tickets: dict[str, set[int]] = field(default_factory=dict)  # of the request, by instance

    def shows(self, fact: Fact) -> bool:
        """Whether the fact is shown. Facts must come in their order."""
        if self.request and isinstance(fact, Committed):
            for message in fact.messages:
                if isinstance(message, Dispatched):
                    self._learn(message)
        return (
            (not self.host or self.host in _hosts(fact))
            and (not self.actor or self.actor in _actors(fact))
            and (not self.request or any(self._concerns(part) for part in _parts(fact)))
        )

    def shows_note(self, line: str) -> bool:
        """Whether a line of the simulation's own trace is shown: it names the host."""
        if self.request or self.actor:
            return False
        return not self.host or f"'{self.host}'" in line or f"'{self.host}/" in line

    def _learn(self, dispatched: Dispatched) -> None:
        mine = self._tickets.setdefault(dispatched.instance, set())
        for ticket, request in zip(dispatched.tickets, dispatched.requests, strict=True):
            if self._named(request):
                mine.add(ticket)
            else:
                mine.discard(ticket)  # the number is used again

    def _concerns(self, part: object) -> bool:
        if isinstance(part, str):
            return self._named(part)
        if isinstance(part, FrameLogged):
            return not self._tickets.get(part.instance, set()).isdisjoint(array("I", part.tickets))
        return False

    def _named(self, text: str) -> bool:
        return text == self.request or text.startswith(f"{self.request}/")


def _hosts(fact: Fact) -> set[str]:
    names = {getattr(fact, name, "") for name in ("host", "process")}
    return {str(name).partition("/")[0] for name in names}


def _actors(fact: Fact) -> set[str]:
    names = {getattr(fact, name, "") for name in ("stream", "who", "on", "caller")}
    if isinstance(fact, MessagePassed):
        names |= {fact.source, fact.to}
    return {str(name) for name in names}


def _parts(value: object) -> Iterator[object]:
    """The value, and all that it holds."""
    yield value
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _parts(getattr(value, name))
    elif isinstance(value, dict):
        for key, held in value.items():
            yield from _parts(key)
            yield from _parts(held)
    elif isinstance(value, list | tuple):
        for held in value:
            yield from _parts(held)
