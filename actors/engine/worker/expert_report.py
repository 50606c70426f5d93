"""`ExpertReporter`: sends routed experts to the subscribers of the requests.

Owns the queue of parts to send. It blocks nothing: decoding goes on if a subscriber is slow. Parts beyond
`MAX_WAITING_BYTES` are dropped, and the subscriber has them computed again.
"""

import asyncio
from collections import deque

from gleaner.actors.engine.worker.expert_routing import ExpertPiece
from gleaner.supervisor import Context

MAX_WAITING_BYTES = 256 << 20


class ExpertReporter:
    """Sends experts; `run` it."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._waiting: deque[ExpertPiece] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self.let_go = 0

    def add(self, pieces: list[ExpertPiece]) -> None:
        """Queue these to be sent, after the earlier ones."""
        for piece in pieces:
            if self._bytes + piece.rows.nbytes > MAX_WAITING_BYTES:
                self.let_go += 1
                self._ctx.log.warning("experts dropped, queue is full: %s", piece.wanted.id)
                continue
            self._bytes += piece.rows.nbytes
            self._waiting.append(piece)
        self._wake.set()

    async def run(self) -> None:
        """Send the queue, for ever."""
        while True:
            await self._ctx.idle(self._wake)
            self._wake.clear()
            while self._waiting:
                piece = self._waiting.popleft()
                for part in piece.parts():
                    await self._ctx.tell(piece.wanted.follower, part)
                self._bytes -= piece.rows.nbytes
