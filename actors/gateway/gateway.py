"""Gateway: the actor behind the HTTP server; asks and follows RolloutManager.

Owns the followed requests, their limit, and the clients that still wait for them. Every request of a client
is a single request of the manager (docs/versions.md): the id names it, and tokens are forwarded once they are
in the manager's journal. So when an engine or the manager dies, a client sees a pause. The gateway sends the
same request again, with the tokens that it has already, until the request's own deadline. The HTTP server is
an adapter behind `HttpEntry`; the simulator runs it on simulated connections.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Protocol

from gleaner.actors.gateway.ask import Ask, BadAsk, Busy, End, Piece, Requests
from gleaner.actors.gateway.cancellation import Cancellation
from gleaner.actors.gateway.expert_collection import ExpertCollection
from gleaner.actors.gateway.fleet import Fleet
from gleaner.actors.gateway.follow import Follow
from gleaner.actors.gateway.job_fleet import HoldableRequests, JobFleet
from gleaner.actors.gateway.recent_names import RecentNames
from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.experts import ExpertRows
from gleaner.actors.protocol.requests import Generate, Progress
from gleaner.actors.rollout.dispatch.session_affinity import MAX_SESSION
from gleaner.configs.schema import Gateway as Settings
from gleaner.supervisor import Actor, AskFailed, Context, Message, Refused, Suspended, handles

SWEEP_S = 0.25
AGAIN_S = 0.5
"""Seconds between two requests for the tokens of a gap: the answer of the first may be in transit."""
RETRY_S = 0.2
"""Seconds before the gateway asks a manager again that had no capacity, or crashed on the request."""
GRACE_S = 3.0
"""Seconds beyond a request's deadline, or after its abort, for the manager to report its end; then the
gateway ends it."""
MAX_REMEMBERED = 4096
"""Limit of remembered ids, each for: aborted requests, and requests left by clients that may return."""


class HttpEntry(Protocol):
    """The HTTP entry; closed when created."""

    async def start(self) -> str:
        """Open the door; returns its URL. Raises OSError if it cannot listen there."""

    async def close(self) -> None:
        """Close the door; streams end."""


MakeHttpEntry = Callable[[Requests, Fleet], HttpEntry]
"""A door in front of these requests and that fleet."""
MakeFleet = Callable[[Context, HoldableRequests], Fleet]
"""Makes the fleet that the control routes call, on the context of a gateway, with its requests."""


class _LookAround(Message, frozen=True):
    """Check for readers that have caught up, and for aborts that were not answered."""


class Gateway(Actor):
    """See the module.

    Args:
        settings: `[gateway]`.
        make_door: the HTTP server.
        make_fleet: a job's fleet, or one of its own.
    """

    def __init__(
        self, settings: Settings, make_door: MakeHttpEntry, make_fleet: MakeFleet = JobFleet
    ) -> None:
        self._settings, self._make_door, self._make_fleet = settings, make_door, make_fleet
        self._follows: dict[str, Follow] = {}
        self._left = RecentNames(MAX_REMEMBERED)
        self._aborted = RecentNames(MAX_REMEMBERED)
        self._open = asyncio.Event()
        self._open.set()
        self._url = ""
        self._served = self._gaps = self._refused = self._asks = 0

    async def on_start(self) -> None:
        door = self._make_door(self, self._make_fleet(self.ctx, self))
        self.ctx.at_end(door.close)
        self._url = await door.start()
        self.ctx.log.info("serves HTTP at %s", self._url)
        self._cancelling = Cancellation(self.ctx)
        self._experts = ExpertCollection(self.ctx, self._cancelling.add)
        self.ctx.every(SWEEP_S, _LookAround())
        self.ctx.background(self._cancelling.run(), "cancel")

    # -- what the routes call --

    @property
    def under_way(self) -> int:
        """Requests that are started and not over, and that have a reader."""
        return sum(follow.begun and not follow.over for follow in self._follows.values())

    @property
    def waiting(self) -> int:
        """Requests that wait for the end of a pause."""
        return sum(not follow.begun and not follow.over for follow in self._follows.values())

    async def stream(self, ask: Ask) -> AsyncGenerator[Piece | End, None]:
        """See `ask.Requests`."""
        follow = self._follow(ask)
        source = follow.read()
        try:
            async for item in source:
                if isinstance(item, End):
                    self._leave(follow)
                yield item
                if follow.behind and follow.room:
                    self._again(follow)
        finally:
            await source.aclose()
            self._leave(follow)

    async def abort(self, ids: Iterable[str] | None) -> int:
        """See `ask.Requests`."""
        known = [*self._follows, *self._left]
        if ids is None:
            chosen = known
        else:
            wanted = list(ids)
            parts = [id for id in known if any(id.startswith(f"{one}.") for one in wanted)]
            chosen = [*wanted, *parts]
        now = self.ctx.now()
        for id in dict.fromkeys(chosen):
            self._aborted.add(id)
            self._cancelling.add(id)
            follow = self._follows.get(id)
            if follow is not None and not follow.aborted:
                follow.aborted, follow.aborted_s = True, now
        return len(set(chosen) & set(known))

    def hold(self) -> None:
        """Start no request until `release`: new ones wait, within their deadlines."""
        self._open.clear()

    def release(self) -> None:
        """Start requests again."""
        self._open.set()

    @property
    def held(self) -> bool:
        """Whether new requests wait for `release`."""
        return not self._open.is_set()

    # -- messages of the manager --

    @handles(Progress)
    async def progress(self, message: Progress) -> None:
        for item in message.items:
            follow = self._follows.get(item.id)
            if follow is not None and follow.receive(item) == "gap":
                self._again(follow)

    @handles(ExpertRows)
    async def expert_rows(self, message: ExpertRows) -> None:
        self._experts.receive(message)

    @handles(_LookAround)
    async def look_around(self, message: _LookAround) -> None:
        now = self.ctx.now()
        self._cancelling.look()
        for follow in list(self._follows.values()):
            if follow.over or follow.unrouted is not None:
                continue
            if follow.aborted_s is not None and now - follow.aborted_s > GRACE_S:
                follow.give_up("abort")
                # again: the first cancel may have arrived before the request
                self._cancelling.add(follow.ask.id)
            elif follow.behind and follow.room:
                self._again(follow)

    def summary(self) -> dict[str, str | int | float]:
        return {
            "url": self._url,
            "requests": len(self._follows),
            "served": self._served,
            "refused": self._refused,
            "gaps": self._gaps,
            "held": int(self.held),
        }

    # -- one request --

    def _follow(self, ask: Ask) -> Follow:
        """The follow of this id, existing or new. Raises BadAsk, Busy."""
        known = self._follows.get(ask.id)
        if known is not None:
            if known.same(ask):
                return known
            raise BadAsk(f"request {ask.id} was already used with different contents", "rid")
        most = self._settings.max_concurrent
        if len(self._follows) >= most:
            self._refused += 1
            raise Busy(f"{most} requests are under way, as many as gateway.max_concurrent admits")
        follow = Follow(ask, self.ctx.now() + ask.deadline_s, self._settings.buffer_tokens)
        follow.aborted = ask.id in self._aborted
        self._left.discard(ask.id)
        self._follows[ask.id] = follow
        if ask.rows:
            self._experts.begin(ask.id)
        self._served += 1
        self._start(follow)
        return follow

    def _leave(self, follow: Follow) -> None:
        """A reader has left the request; end it if it was the last."""
        if follow.readers or self._follows.get(follow.ask.id) is not follow:
            return
        del self._follows[follow.ask.id]
        if follow.task is not None:
            follow.task.cancel()
        self._experts.forget(follow.ask.id)
        if follow.ask.named:
            if not follow.over:
                self._left.add(follow.ask.id)
        elif follow.problem is None:  # no client knows its id, so none returns
            tell = self._cancelling.later if follow.over else self._cancelling.add
            tell(follow.ask.id)

    def _again(self, follow: Follow) -> None:
        """Ask for the missing tokens, not too often."""
        now = self.ctx.now()
        if follow.over or follow.unrouted is not None or now - follow.asked_s < AGAIN_S:
            return
        self._gaps += 1
        self._start(follow)

    def _start(self, follow: Follow) -> None:
        if follow.task is not None:
            follow.task.cancel()
        follow.attempt += 1
        follow.asked_s = self.ctx.now()
        follow.behind = False
        follow.task = self.ctx.background(self._ask(follow), f"request {follow.ask.id}")

    async def _ask(self, follow: Follow) -> None:
        """Ask until the manager has answered, or the deadline has passed."""
        now = self.ctx.now
        if not await self.ctx.idle(self._open, max(follow.until_s - now(), 0.0)):
            follow.give_up("deadline")
        follow.begun = True
        while not follow.over:
            left_s = follow.until_s - now()
            if left_s <= -GRACE_S:
                follow.give_up("abort" if follow.aborted else "deadline")
                break
            self._asks += 1  # each ask is separate; the id makes them the same request
            try:
                answer = await self.ctx.ask(
                    MANAGER,
                    self._message(follow, max(left_s, SWEEP_S)),
                    deadline_s=left_s + GRACE_S,
                    expect=Message,
                    key=f"{self.ctx.name}/{self.ctx.incarnation}/{self._asks}",
                )
            except Refused as refusal:
                lives = follow.lives
                follow.refused(str(refusal))
                if follow.lives != lives and follow.ask.rows:
                    self._experts.begin(follow.ask.id)
            except Suspended as full:
                if not len(follow):
                    follow.finish(Busy(str(full), GRACE_S))
                else:
                    await asyncio.sleep(RETRY_S)
            except AskFailed:  # timeouts too: one that fails at once must not block the event loop
                await asyncio.sleep(RETRY_S)
            else:
                follow.receive_reply(answer)
            if follow.unrouted is not None:
                await self._experts.complete(follow)
            follow.attempt += 1

    def _message(self, follow: Follow, left_s: float) -> Generate:
        ask = follow.ask
        return Generate(
            id=ask.id,
            prompt=ask.prompt.tobytes(),
            max_new_tokens=ask.max_new_tokens,
            temperature=ask.temperature,
            seed=ask.seed,
            min_version=ask.min_version,
            exact_version=ask.exact_version,
            wait_s=min(ask.wait_s, left_s) if ask.gated else left_s,
            deadline_s=left_s,
            accepted=len(follow),
            accepted_sha256=follow.sha256() if len(follow) else b"",
            attempt=follow.attempt,
            sampling=ask.sampling,
            follower=self.ctx.name,
            session=ask.session[:MAX_SESSION],
            experts=ask.rows,
            scores=ask.scores,
        )
