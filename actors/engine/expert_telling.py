"""The telling of experts: what engines said of routed tokens goes to who follows the requests, part by part.

Owns what waits to be told. It holds nobody up: where a follower is slow, decoding goes on, and what does not
fit into `MAX_WAITING_BYTES` is let go; the follower has it computed again.
"""

import asyncio
from collections import deque

from actors.engine.expert_piece import ExpertPiece
from supervisor import Context

MAX_WAITING_BYTES = 256 << 20


class ExpertTelling:
    """See the module; `run` it."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._waiting: deque[ExpertPiece] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self.let_go = 0

    def add(self, pieces: list[ExpertPiece]) -> None:
        """These are to be told, after those before."""
        for piece in pieces:
            if self._bytes + piece.rows.nbytes > MAX_WAITING_BYTES:
                self.let_go += 1
                self._ctx.log.warning("experts of %s are not told: too many wait", piece.wanted.id)
                continue
            self._bytes += piece.rows.nbytes
            self._waiting.append(piece)
        self._wake.set()

    async def run(self) -> None:
        """Tell, for ever."""
        while True:
            await self._ctx.idle(self._wake)
            self._wake.clear()
            while self._waiting:
                piece = self._waiting.popleft()
                for part in piece.parts():
                    await self._ctx.tell(piece.wanted.follower, part)
                self._bytes -= piece.rows.nbytes
