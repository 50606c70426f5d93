"""Quarantine: a request that may kill engines runs alone on an empty instance.

Owns the one instance that is kept free for it; the balancer sees that instance as serving nothing meanwhile.
One suspect runs at a time, so one suspect costs at most one engine at a time. `suspect_policy` decides which
requests are suspects. In memory only: a restarted manager starts counting from zero.
"""

from gleaner.actors.names import BALANCER
from gleaner.actors.protocol.balancer import InstanceServes
from gleaner.actors.rollout.dispatch.suspect_policy import MAX_KNOWN, SuspectRequest, Suspects
from gleaner.actors.rollout.fleet.instance_table import Instance, Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.request_log import RequestLog, RequestState
from gleaner.actors.rollout.state.tickets import Stream
from gleaner.supervisor import Context


class Quarantine:
    """See the module."""

    def __init__(self, ctx: Context, journaled: JournaledState, instances: Instances) -> None:
        self._ctx, self._journaled, self._instances = ctx, journaled, instances
        self._suspects = Suspects()
        self._kept: tuple[str, int] | None = None
        self._request = ""  # the request that it is kept for
        self._sent_s: dict[str, float] = {}  # single requests
        self._ended: set[str] = set()  # about to be closed; not dispatched until then

    def sent(self, logs: list[RequestLog]) -> None:
        """Record that these were sent to an instance."""
        for log in logs:
            if self._single(log):
                self._sent_s.pop(log.id, None)
                self._sent_s[log.id] = self._ctx.now()
        while len(self._sent_s) > MAX_KNOWN:
            del self._sent_s[next(iter(self._sent_s))]

    def forget(self, request: str) -> None:
        """The request is over."""
        self._suspects.forget(request)
        self._ended.discard(request)
        self._sent_s.pop(request, None)

    def died(self, instance: str, stream: Stream) -> list[str]:
        """An instance died unasked, with the requests of its stream. Returns requests to end: they kill
        engines."""
        requests, now_s = self._journaled.state.log.requests, self._ctx.now()
        held: dict[str, SuspectRequest] = {}
        for ticket in stream.live().values():
            log = requests.get(ticket.request)
            if log is not None:
                sent_s = self._sent_s.get(log.id, float("-inf"))
                held[log.id] = SuspectRequest(len(log), _got_tokens(log), sent_s)
        singles = {request for request in held if self._single(requests[request])}
        ended = self._suspects.died(instance, now_s, held, singles)
        self._ended.update(ended)
        return ended

    def suspect(self, batch: str) -> RequestLog | None:
        """The request of this batch, if it waits to run alone."""
        known = self._journaled.state.log.batches[batch]
        if known.submitted.scored:
            return None
        log = known.groups[0][0]
        waits = log.state is RequestState.QUEUED and self._suspects.suspect(log.id, len(log))
        return log if waits else None

    async def room(self, log: RequestLog, roots: dict[int, bytes]) -> Instance | None:
        """An empty instance for this request; None: not yet. One instance is kept free from now on."""
        if log.id in self._ended:
            return None
        instance = self._instance()
        if self._request == log.id and (instance is None or not self._serves(instance, roots)):
            await self._give_back()  # it serves other weights by now
        if self._kept is None:
            able = [one for one in self._instances.values() if self._serves(one, roots)]
            if not able:
                return None
            chosen = min(able, key=lambda one: self._journaled.state.streams[one.name].held)
            self._kept, self._request = (chosen.name, chosen.incarnation), log.id
            self._ctx.log.warning(
                "quarantine after deaths of several engines: request=%s runs alone on %s", log.id, chosen.name
            )
            await self._ctx.tell(BALANCER, chosen.serves(None))
        instance = self._instance()
        if self._request != log.id or instance is None:
            return None
        return instance if not self._journaled.state.streams[instance.name].held else None

    def report(self, instance: Instance) -> InstanceServes:
        """What an instance serves, for the balancer: the one that is kept free serves nothing, whatever it
        has loaded."""
        if self._kept == (instance.name, instance.incarnation):
            return instance.serves(None)
        return instance.serves(instance.version, instance.root)

    async def look(self) -> None:
        """Release the instance when its request has a token or is over, or when it serves no weights."""
        if self._kept is None:
            return
        instance, log = self._instance(), self._journaled.state.log.requests.get(self._request)
        if instance is not None and log is not None:
            waits = log.state is RequestState.QUEUED and self._suspects.suspect(log.id, len(log))
            runs = log.state is RequestState.DISPATCHED and not _got_tokens(log)
            if instance.version is not None and (waits or runs):
                return
        await self._give_back()

    async def _give_back(self) -> None:
        """Let the instance serve all requests again."""
        instance = self._instance()
        self._kept, self._request = None, ""
        if instance is not None and instance.version is not None:
            await self._ctx.tell(BALANCER, instance.serves(instance.version, instance.root))

    def _instance(self) -> Instance | None:
        name, incarnation = self._kept or ("", 0)
        known = self._instances.get(name)
        return known if known is not None and known.incarnation == incarnation else None

    def _serves(self, instance: Instance, roots: dict[int, bytes]) -> bool:
        version = instance.version
        alive = self._journaled.state.streams.alive(instance.name, instance.incarnation) is not None
        return alive and version is not None and roots.get(version) == instance.root

    def _single(self, log: RequestLog) -> bool:
        return not self._journaled.state.log.batches[log.batch].submitted.scored


def _got_tokens(log: RequestLog) -> bool:
    """Whether the present attempt of the request made tokens."""
    return bool(log.spans) and log.spans[-1].attempt == log.attempts
