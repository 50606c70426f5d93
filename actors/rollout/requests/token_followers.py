"""TokenFollowers: push committed tokens to the followers of single requests.

Owns how far each follower is up to date. Tokens sent to a follower are in the journal, so no later life of
the manager contradicts them. They are sent at most once; a follower that finds a gap asks again. All that is
new is one message per follower, however many requests it follows: a slow follower gets fewer, longer
messages, and blocks no other.
"""

import asyncio
import math

from gleaner.actors.protocol.requests import Progress, ProgressItem
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.follow_progress import FollowProgress, Marks
from gleaner.actors.rollout.state.request_log import RequestLog
from gleaner.supervisor import Context

TELL_S = 0.02
"""Seconds between two messages of progress; a reader of text sees no difference, and each message costs time
in every process behind it."""


class TokenFollowers:
    """See the module; `run` it."""

    def __init__(self, ctx: Context, journaled: JournaledState) -> None:
        self._ctx, self._journaled = ctx, journaled
        self._followed: dict[str, FollowProgress] = {}  # by request
        self._fresh: dict[str, FollowProgress] = {}  # of these, those with more committed than sent
        self._wake = asyncio.Event()
        self._told_s = -math.inf
        self._later = False

    def follow(self, id: str, log: RequestLog, follower: str, accepted: int) -> None:
        """Send tokens from `accepted` on; this replaces an earlier follower. Tokens in the log already may
        not be committed: they are sent with the next ones."""
        if log.crc is None and follower:
            self._followed[log.id] = FollowProgress(id, log, follower, accepted, accepted, accepted)

    def forget(self, request: str) -> None:
        """The request is over: the rest is in its answer."""
        self._followed.pop(request, None)
        self._fresh.pop(request, None)

    def entered(self) -> Marks:
        """Requests that grew since the last call; pass the result to `committed` when the journal has it."""
        marks = [(one, len(one.log)) for one in self._followed.values() if len(one.log) > one.entered]
        for one, length in marks:
            one.entered = length
        return marks

    def committed(self, marks: Marks) -> None:
        """These lengths are in the journal."""
        for one, length in marks:
            if self._followed.get(one.log.id) is one:
                one.committed = length
                self._fresh[one.log.id] = one
        if self._fresh:
            self._wake.set()

    async def run(self) -> None:
        """Send progress, forever: the first tokens of a request at once, later ones together."""
        while True:
            await self._ctx.idle(self._wake)
            self._wake.clear()
            left_s = self._told_s + TELL_S - self._ctx.now()
            chosen = list(self._fresh.values())
            if left_s > 0:
                chosen = [one for one in chosen if one.new]
                if len(chosen) < len(self._fresh) and not self._later:
                    self._later = True
                    self._ctx.background(self._wake_later(left_s), "tell")
            else:
                self._told_s = self._ctx.now()
            items: dict[str, list[ProgressItem]] = {}
            for one in chosen:
                del self._fresh[one.log.id]
                one.new = False
                held = self._journaled.state.log.requests.get(one.log.id) is one.log and one.log.crc is None
                if held and one.committed > one.sent:
                    items.setdefault(one.follower, []).append(_item(one))
                    one.sent = one.committed
            for follower, sent in items.items():
                await self._ctx.tell(follower, Progress(items=sent))

    async def _wake_later(self, left_s: float) -> None:
        await asyncio.sleep(left_s)
        self._later = False
        self._wake.set()


def _item(one: FollowProgress) -> ProgressItem:
    tokens, logprobs = one.log.made_since(one.sent)
    size = 4 * (one.committed - one.sent)
    return ProgressItem(
        id=one.id,
        start=one.sent,
        tokens=tokens[:size],
        logprobs=logprobs[:size],
        version=one.log.version_at(one.committed - 1),
    )
