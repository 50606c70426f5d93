"""Requests whose responses are the alphabet, letter by letter; the weights change on the way."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field

from gleaner.actors.gateway.ask import Ask, Busy, End, Piece
from tests.actors.gateway.gateway_world import FakeRequests

SWITCH = 3
"""Tokens of version 3; later tokens are of version 4."""


def letter(position: int) -> int:
    return ord("a") + position % 26


@dataclass
class Story(FakeRequests):
    """own_end: tokens after which a response ends by itself; pause_s: before each token; busy: what ids end
    in that are refused after a token."""

    own_end: int = 10**9
    pause_s: float = 0.0
    busy: str = "none"
    ended: set[str] = field(default_factory=set)

    async def stream(self, ask: Ask) -> AsyncGenerator[Piece | End, None]:
        self.asked.append(ask)
        count, done = 0, False
        try:
            while count < min(ask.max_new_tokens, self.own_end) and ask.id not in self.ended:
                await asyncio.sleep(self.pause_s)
                version = 3 if count < SWITCH else 4
                yield Piece([letter(count)], [-(count + 1) / 8], version)
                count += 1
                if ask.id.endswith(self.busy):
                    done = True
                    raise Busy("no room")
            done = True
            spans = tuple(
                span for span in ((3, min(count, SWITCH)), (4, max(0, count - SWITCH))) if span[1] > 0
            )
            status = "abort" if ask.id in self.ended else "length" if count == ask.max_new_tokens else "stop"
            yield End(status, spans, spans[0][0] if spans else None, spans[-1][0] if spans else None)
        finally:
            if not done:
                self.left.append(ask.id)

    async def abort(self, ids: Iterable[str] | None) -> int:
        ids = [ask.id for ask in self.asked] if ids is None else list(ids)
        self.aborted.append(ids)
        self.ended.update(ids)
        return len(ids)
