"""Gateway requests: which requests of the manager belong to which call of an HTTP client.

Owns that table. Prompt and seed name a choice of a call; the batch of its request is found in the journal. A
released request stays known here: its client may still read.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.batches import BatchSubmitted
from gleaner.chaos.invariants.facts import Committed
from gleaner.chaos.invariants.gateway_facts import GatewayCall
from gleaner.chaos.invariants.shadow import Shadow, ShadowRequest

BATCH = "generate-"
"""Prefix of the batch of a single request (docs/protocol.md); written again here on purpose."""
Key = tuple[bytes, int]


@dataclass(slots=True)
class Asked:
    """A choice of a call. begun: names of its requests, one for each time that one was begun."""

    call: GatewayCall
    sent_s: float
    begun: list[str] = field(default_factory=list)
    over_s: float | None = None


class GatewayRequests:
    """See the module."""

    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow
        self.asked: dict[Key, Asked] = {}
        self._requests: dict[str, ShadowRequest] = {}

    def sent(self, call: GatewayCall, at_s: float) -> None:
        """A client sends this call; a repeated one goes on."""
        for key in call.origins():
            self.asked.setdefault(key, Asked(call, at_s)).over_s = None

    def over(self, call: GatewayCall, at_s: float) -> None:
        """The call is over."""
        for key in call.origins():
            self.asked[key].over_s = at_s

    def committed(self, fact: Committed) -> Iterator[str]:
        """Requests that were begun; yields a text for each that no client asked for."""
        if fact.stream != MANAGER or fact.snapshot:
            return
        for message in fact.messages:
            if not isinstance(message, BatchSubmitted) or message.scored:
                continue
            (prompt,) = message.prompts
            asked = self.asked.get((_raw(prompt.tokens), prompt.seeds[0]))
            if asked is None:
                yield f"{message.batch} was begun, and no client asked for it"
            elif asked.begun and not asked.call.rid:
                yield f"{asked.call.name}: {asked.begun[-1]} was begun, then {message.batch} for the same"
            else:
                call = asked.call
                sampling = message.sampling
                if (message.max_new_tokens, message.temperature) != (call.max_tokens, call.temperature):
                    yield f"{call.name}: {message.batch} was begun with another limit or temperature"
                if (1.0 if sampling is None else sampling.top_p) != call.top_p:
                    yield f"{call.name}: {message.batch} was begun with another top_p"
            if asked is not None:
                asked.begun.append(message.batch)

    def lives(self, key: Key) -> list[ShadowRequest]:
        """The requests of a choice, the newest last."""
        found = []
        for batch in self.asked[key].begun:
            name = f"{batch}/0/0"
            known = self._shadow.requests.get(name) or self._requests.get(batch)
            if known is not None:
                found.append(known)
        return found

    def released(self, batch: str) -> None:
        """The journal is about to forget this batch."""
        known = self._shadow.requests.get(f"{batch}/0/0")
        if known is not None and batch.startswith(BATCH):
            self._requests[batch] = known


def _raw(tokens: tuple[int, ...]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)
