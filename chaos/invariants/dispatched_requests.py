"""Dispatches: each one is what was submitted, however often its request is sent.

Owns the comparison of a dispatch with the submission in the journal. The prefix is a part of I2.
"""

from collections.abc import Iterable, Iterator

from gleaner.actors.protocol.instances import Dispatch, Work
from gleaner.chaos.invariants.check import Check, some
from gleaner.chaos.invariants.facts import Fact, MessagePassed
from gleaner.chaos.invariants.shadow import Shadow, ShadowRequest


class SentAsSubmitted(Check):
    """See the module."""

    fact_kinds, message_kinds = (MessagePassed,), (Dispatch,)
    name = "dispatches"
    promise = "an instance gets each request as it was submitted: prompt, seed, limit, sampling parameters"
    meaning = (
        "If this fails, a request that moved went on as another one: the end of its response is to another "
        "prompt, or from another distribution than its log-probs are trained with."
    )

    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, MessagePassed) and fact.direction == "out" and isinstance(fact.message, Dispatch):
            stream = self._shadow.streams.get(fact.to)
            for work in fact.message.work if stream is not None else ():
                assert stream is not None
                name = stream.tickets.get(work.ticket)
                if name is not None:  # otherwise it was taken back meanwhile
                    yield from some(_others(self._shadow.requests[name], work, fact.to))


def _others(known: ShadowRequest, work: Work, to: str) -> Iterator[str]:
    """The parts of a dispatch that were submitted otherwise."""
    asked = known.asked
    parts = {
        "temperature": (work.temperature, asked.temperature),
        "seed": (work.seed, known.seed),
        "limit": (work.max_new_tokens, known.limit),
        "sampling parameters": (work.sampling, asked.sampling),
    }
    for part, (sent, submitted) in parts.items():
        if sent != submitted:
            yield f"{known.id} went to {to} with {part} {sent}, submitted was {submitted}"
    if work.prompt != asked.prompt:
        yield (
            f"{known.id} went to {to} with a prompt of {len(work.prompt) // 4} tokens, submitted were "
            f"{len(asked.prompt) // 4}, and they differ"
        )
