"""A reward service that scores for the job: calls within their bound, one an item, none that is left over.

Owns the items of the job that its proxy has, by their response, and the calls under way of each, which it
counts at the connections. `TrueVerdicts` compares the scores, `RewardsOnce` counts them.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gleaner.actors.names import REWARD
from gleaner.actors.protocol.reward import BatchEnded, CancelScores, Score, Verdict
from gleaner.actors.reward.verifiers.service_verifier import LONGEST_WAIT_S
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Fact, MessagePassed
from gleaner.chaos.invariants.service_facts import CallBegan, CallEnded, ServiceSeen, response_key
from gleaner.chaos.invariants.world_facts import WorldSeen
from gleaner.configs.schema import Config
from gleaner.sim.run_setup import HEAD

PROXY = "head/reward"
"""The process of the job's proxy."""
GONE_S = 3.0
"""From the end of an item at one end until the other end has ended it too, in calm."""
AGAIN_S = 2 * LONGEST_WAIT_S + GONE_S
"""From a call that failed to the next one of its item: the longest pause and its spread."""
DIED_S = 30.0
"""A service learns late, or never, that a client has lost its power."""


@dataclass(slots=True)
class _Response:
    """What the proxy and the network have of one response. requests: open ones. since_s: of the last change;
    called: whether there was a call of it in this life of its requests."""

    requests: set[str] = field(default_factory=set)
    calls: set[int] = field(default_factory=set)
    since_s: float = 0.0
    called: bool = False


class SharedServiceCalls(Check):
    """See `promise`."""

    fact_kinds = (CallBegan, CallEnded, MessagePassed, ServiceSeen, WorldSeen)
    message_kinds = (BatchEnded, CancelScores, Score, Verdict)
    name = "shared service"
    promise = (
        "a response is one call of the service at a time, begun again when it fails; a dropped one ends its "
        "call and leaves the service's queue; no process has more calls than it may"
    )
    meaning = (
        "If this fails, a job waits for a verdict that no worker computes, or the service of many jobs "
        "computes what no job needs."
    )

    def __init__(self, config: Config) -> None:
        self._most = dict.fromkeys(("head", "reward"), config.reward.share.max_calls)
        self._responses: dict[bytes, _Response] = {}
        self._of_request: dict[str, tuple[str, bytes]] = {}  # batch, response
        self._calls: dict[int, tuple[str, bytes]] = {}  # process, response of each call under way
        self._under_way: Counter[str] = Counter()
        self._calm_s = 0.0
        self._died_s = -math.inf
        self._over_s: float | None = None  # since when the service has more items than there are calls
        self._told: set[bytes] = set()

    def see(self, fact: Fact) -> Iterable[str]:
        match fact:
            case CallBegan():
                yield from self._began(fact)
            case CallEnded():
                self._ended(fact)
            case ServiceSeen():
                yield from self._service(fact)
            case WorldSeen():
                names = [name for name, look in fact.hosts.items() if look.role in ("head", "reward")]
                self._calm_s = fact.calm_s(HEAD, *names)
                yield from self._look(fact.at_s)
            case MessagePassed(process=process) if process == PROXY:
                self._passed(fact)

    # -- the proxy's items --

    def _passed(self, fact: MessagePassed) -> None:
        match fact.message:
            case Score() as asked if fact.direction == "in":
                key = response_key(asked.split, asked.index, asked.tokens)
                if self._of_request.get(asked.request) == (asked.batch, key):
                    return  # asked again
                self._forget([asked.request], fact.at_s)
                self._of_request[asked.request] = asked.batch, key
                found = self._responses.setdefault(key, _Response())
                found.requests.add(asked.request)
                found.since_s = fact.at_s
                found.called = bool(found.calls)
            case Verdict(request=request) if fact.direction == "out":
                self._forget([request], fact.at_s)
            case CancelScores(requests=requests) if fact.direction == "in" and fact.to == REWARD:
                self._forget(requests, fact.at_s)
            case BatchEnded(batch=batch) if fact.direction == "in" and fact.to == REWARD:
                self._forget([it for it, (its, _) in self._of_request.items() if its == batch], fact.at_s)

    def _forget(self, requests: Iterable[str], at_s: float) -> None:
        for request in requests:
            _, key = self._of_request.pop(request, ("", b""))
            found = self._responses.get(key)
            if found is not None:
                found.requests.discard(request)
                found.since_s = at_s
                if not found.requests and not found.calls:
                    del self._responses[key]

    # -- calls --

    def _began(self, fact: CallBegan) -> Iterator[str]:
        self._calls[fact.number] = fact.process, fact.response
        self._under_way[fact.process] += 1
        found = self._responses.setdefault(fact.response, _Response(since_s=fact.at_s))
        found.calls.add(fact.number)
        found.called = True
        if found.requests:
            found.since_s = fact.at_s
        has, most = self._under_way[fact.process], self._most.get(fact.role, 0)
        if has > most:
            yield f"{fact.process} has {has} calls of the service under way, at most {most} may be"

    def _ended(self, fact: CallEnded) -> None:
        process, key = self._calls.pop(fact.number, ("", b""))
        self._under_way[process] -= 1
        if fact.died:
            self._died_s = fact.at_s
        found = self._responses.get(key)
        if found is None:
            return
        found.calls.discard(fact.number)
        if found.requests:
            found.since_s = fact.at_s
        elif not found.calls:
            del self._responses[key]

    # -- looks --

    def _look(self, at_s: float) -> Iterator[str]:
        for key, found in self._responses.items():
            for_s = min(at_s - found.since_s, self._calm_s)
            if key in self._told:
                continue
            if found.calls and not found.requests and for_s > GONE_S:
                self._told.add(key)
                yield f"a response is not needed for {at_s - found.since_s:.1f} s, and still a call under way"
            elif found.requests and found.called and not found.calls and for_s > AGAIN_S:
                self._told.add(key)
                names = ", ".join(sorted(found.requests))
                yield f"{names} has no call of the service for {at_s - found.since_s:.1f} s, and no verdict"

    def _service(self, fact: ServiceSeen) -> Iterator[str]:
        calls = len(self._calls)
        calm_s = min(fact.calm_s, self._calm_s, fact.at_s - self._died_s - DIED_S)
        if fact.items <= calls or calm_s <= 0:
            self._over_s = None
            return
        if self._over_s is None:
            self._over_s = fact.at_s
        elif fact.at_s - self._over_s > GONE_S:
            self._over_s = None
            yield f"the service has {fact.items} items for more than {GONE_S:g} s, {calls} calls wait for one"
