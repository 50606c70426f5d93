"""Deadlines: a request that is too old ends with the tokens that it has.

Owns the deadline of each request, and the aborts of those past it. The effect on a request is an event like
any other (`RequestsDue`): a waiting one is over at once, a dispatched one as soon as its instance's stream
reports its end. No collected token is lost, and attempts are not limited: a request moves as often as it must
until its own deadline.

A restarted manager gives running requests their whole time again: no journal has the time that they had
taken.
"""

from gleaner.actors.protocol.instances import Abort
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.events import RequestsDue
from gleaner.actors.rollout.state.request_log import RequestLog, RequestState
from gleaner.supervisor import Context

OVER = (RequestState.FINISHED, RequestState.DROPPED)


class Deadlines:
    """See the module; `look` now and then.

    Args:
        limit_s: from a request's first dispatch, for those without a deadline of their own; 0: none.
    """

    def __init__(self, ctx: Context, journaled: JournaledState, instances: Instances, limit_s: float) -> None:
        self._ctx, self._journaled, self._instances, self._limit_s = ctx, journaled, instances, limit_s
        self._until_s: dict[str, float] = {}
        requests = [log for log in journaled.state.log.requests.values() if log.state not in OVER]
        self.sent([log for log in requests if log.attempts])
        self._until_s |= {log.id: ctx.now() for log in requests if log.due}

    def sent(self, logs: list[RequestLog]) -> None:
        """These were dispatched: their time runs from the first dispatch on."""
        if self._limit_s > 0:
            until_s = self._ctx.now() + self._limit_s
            for log in logs:
                if self._journaled.state.log.batches[log.batch].submitted.scored:
                    self._until_s.setdefault(log.id, until_s)

    def until(self, request: str, seconds: float) -> None:
        """Give this request `seconds` from now on, dispatched or not; never more than it had before."""
        until_s = self._ctx.now() + seconds
        self._until_s[request] = min(until_s, self._until_s.get(request, until_s))

    async def look(self) -> Effects | None:
        """End requests past their deadline; returns what that changed, None for nothing."""
        log, now = self._journaled.state.log, self._ctx.now()
        late: list[str] = []
        for name, until_s in list(self._until_s.items()):
            request = log.requests.get(name)
            if request is None or request.state in OVER:
                del self._until_s[name]
            elif now >= until_s and not request.due:
                late.append(name)
        changes = None
        if late:
            self._ctx.log.info(
                "requests past their deadline end with the tokens they have: count=%d", len(late)
            )
            changes = await self._journaled.record(RequestsDue(requests=tuple(late)))
        await self._abort()
        return changes

    async def _abort(self) -> None:
        """Send aborts to the instances that hold such requests, again each time: an abort may be lost in
        transit."""
        log = self._journaled.state.log
        if not any(request.due for name in self._until_s if (request := log.requests.get(name))):
            return
        for name, stream in self._journaled.state.streams.items():
            instance = self._instances.get(name)
            tickets = [number for number, held in stream.live().items() if log.requests[held.request].due]
            if instance is not None and instance.incarnation == stream.incarnation and tickets:
                await self._ctx.tell(instance.worker, Abort(tickets=tickets))
