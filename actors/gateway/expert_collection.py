"""ExpertCollection: collects requested experts of a request, complete at its end.

Owns the held rows, their limit, and the requests for missing rows at the end. For these an available engine
reads prompt and response once more, and one token is discarded. The death of an engine, worker, manager or
link costs at most one such reading.
"""

import asyncio
import hashlib
from collections.abc import Callable

import msgspec

from gleaner.actors.gateway.ask import Busy
from gleaner.actors.gateway.expert_rows import AFTERWARDS, ExpertRowsOf
from gleaner.actors.gateway.follow import Follow
from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.experts import ExpertRows
from gleaner.actors.protocol.requests import Generate, Generated
from gleaner.supervisor import AskFailed, Context, Message

MAX_HELD_BYTES = 2 << 30
"""Limit of rows of all requests; a part beyond it is ignored, and computed again when its request ends."""
ROWS_S = 1.0
"""Seconds for rows to arrive that were sent when a request ended."""
AGAIN_S = 60.0
"""Seconds for prompt and response to be read again."""
TRIES = 3


class ExpertCollection:
    """See the module. let_go: called with a request of the manager that is no longer needed."""

    def __init__(self, ctx: Context, let_go: Callable[[str], None]) -> None:
        self._ctx, self._let_go = ctx, let_go
        self._rows: dict[str, ExpertRowsOf] = {}
        self._readings: dict[str, str] = {}  # requests whose tokens are read again, by the id of the reading
        self._came = asyncio.Event()
        self._asks = 0

    def begin(self, id: str) -> None:
        """Keep the rows of this request from now on."""
        self._rows[id] = ExpertRowsOf()

    def forget(self, id: str) -> None:
        """Drop the rows of this request."""
        self._rows.pop(id, None)

    def receive(self, message: ExpertRows) -> None:
        """Add a part; a part of a request without a waiting client is ignored."""
        again = self._readings.get(message.id)
        held = self._rows.get(message.id if again is None else again)
        if held is None or self.held_bytes + len(message.rows) > MAX_HELD_BYTES:
            return
        held.receive(message, None if again is None else AFTERWARDS)
        self._came.set()

    @property
    def held_bytes(self) -> int:
        """Bytes of all requests."""
        return sum(held.held_bytes for held in self._rows.values())

    async def complete(self, follow: Follow) -> None:
        """End a request whose end is known, with its experts; or with a reason why they are unavailable."""
        if await self._joined(follow, ROWS_S):
            return
        why = ""
        for number in range(TRIES):
            name = f"{hashlib.sha256(f'{follow.ask.id} {number}'.encode()).hexdigest()[:32]}-experts"
            self._readings[name] = follow.ask.id
            try:
                why = await self._read_again(follow, name)
                if await self._joined(follow, 0.0 if why else ROWS_S):
                    return
            finally:
                del self._readings[name]
                self._let_go(name)
        what = "which experts they had" if follow.ask.scores is None else "their likeliest tokens"
        follow.finish(Busy(f"its tokens are there, but not {what}: {why or 'no rows came'}"))

    async def _joined(self, follow: Follow, within_s: float) -> bool:
        """Whether the request was completed and ended, at most `within_s` after the last part arrived."""
        until_s = self._ctx.now() + within_s
        while follow.ask.id in self._rows:
            held = self._rows[follow.ask.id]
            routed = held.joined(follow.spans, len(follow.ask.prompt), len(follow))
            if routed is not None:
                follow.complete(routed)
                return True
            left_s = until_s - self._ctx.now()
            if left_s <= 0:
                return False
            bytes_before = held.held_bytes
            self._came.clear()
            await self._ctx.idle(self._came, left_s)
            if within_s and held.held_bytes > bytes_before:
                until_s = self._ctx.now() + within_s
        return False

    async def _read_again(self, follow: Follow, name: str) -> str:
        """Have some engine read all tokens but the last; returns why that failed, or ""."""
        self._asks += 1
        scores = follow.ask.scores
        # The row of a place scores the token at that place, so the last one is read too.
        tokens = follow.tokens_bytes()[:-4] if scores is None else follow.tokens_bytes()
        message = Generate(
            id=name,
            prompt=follow.ask.prompt.tobytes() + tokens,
            max_new_tokens=1,
            temperature=0.0,
            wait_s=AGAIN_S,
            deadline_s=AGAIN_S,
            follower=self._ctx.name,
            experts=True,
            scores=None if scores is None else msgspec.structs.replace(scores, prompt=True),
        )
        key = f"{self._ctx.name}/{self._ctx.incarnation}/experts/{self._asks}"
        try:
            answer = await self._ctx.ask(MANAGER, message, deadline_s=AGAIN_S, expect=Message, key=key)
        except AskFailed as problem:
            return str(problem)
        return "" if isinstance(answer, Generated) else f"no engine read them: {answer}"
