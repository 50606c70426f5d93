"""Callers: external programs that send single requests to a simulated cluster.

They do not trust the cluster. Owns the requests and their times, the callers' patience, and the repeats: the
same request, only the rest, and requests that must be refused (a prefix that is not one, an id with different
contents). Callers record asks and answers as facts; `gleaner.chaos.invariants.single_requests` judges them.
All draws depend on the seed alone.
"""

import asyncio
import hashlib
import random
from array import array
from collections.abc import Callable

from msgspec.structs import replace

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.requests import Generate, Generated, VersionNotReady
from gleaner.actors.protocol.sampling_params import Sampling
from gleaner.chaos.invariants.facts import Fact, RequestAnswered, RequestAsked
from gleaner.configs.schema import Config
from gleaner.supervisor import ActorSystem, AskFailed, Message, Refused

BEGIN_S = 6.0  # a cluster is up and has its job by then; some requests arrive before it has weights
GAP_S = 1.5  # mean pause of one caller after an answer
WAITS_S = (0.0, 0.0, 1.0, 5.0, 15.0)
DEADLINES_S = (4.0, 10.0, 20.0, 30.0)
PATIENCE_S = (0.4, 30.0)  # shorter than most answers take: lost requests are asked again
AGAIN_S = 0.3
MAX_NOT_READY = 4  # asks of one request with a closed gate, then the caller gives the request up
AHEAD = (-1, 0, 0, 1, 1, 2)
"""Requested versions, relative to the newest that the caller has received."""
SEEDS = 2**62


class Caller:
    """One program, in an actor system of its own; `run` it. It asks for one request at a time.

    Args:
        name: unique among the callers of the run. rng: for this one alone.
        see: called with each ask and its result. now: virtual seconds, as in facts.
    """

    def __init__(
        self,
        name: str,
        config: Config,
        rng: random.Random,
        see: Callable[[Fact], None],
        now: Callable[[], float],
    ) -> None:
        self._name, self._rng, self._see, self._now = name, rng, see, now
        self._most_prompt, self._most_new = config.engine.max_prompt_tokens, config.rollout.max_new_tokens
        self._newest = 0

    async def run(self, system: ActorSystem) -> None:
        """Ask, for ever."""
        rng, number = self._rng, 0
        await asyncio.sleep(rng.uniform(0.0, BEGIN_S))
        while True:
            request = self._drawn(f"{self._name}-{number}")
            number += 1
            answer = await self._insist(system, request)
            for _ in range(rng.choice((0, 1, 1, 2)) if answer is not None else 0):
                await asyncio.sleep(rng.expovariate(1 / GAP_S))
                await self._insist(system, self._once_more(request, answer))
            await asyncio.sleep(rng.expovariate(1 / GAP_S))

    def _drawn(self, name: str) -> Generate:
        """A request of any gate, length and time."""
        rng = self._rng
        count = rng.randint(1, min(8, self._most_prompt))
        prompt = array("I", [rng.randrange(1, 1000) for _ in range(count)])
        request = Generate(
            id=name,
            prompt=prompt.tobytes(),
            max_new_tokens=rng.randint(1, self._most_new),
            seed=rng.randrange(SEEDS),
            wait_s=rng.choice(WAITS_S),
            deadline_s=rng.choice(DEADLINES_S),
        )
        request = replace(
            request,
            temperature=0.7 if request.seed & 1 else 1.0,
            sampling=Sampling(top_p=0.9) if request.seed & 2 else None,
        )
        version = max(self._newest + rng.choice(AHEAD), 0)
        gate = rng.choice(("", "min", "exact"))
        if gate == "min":
            return replace(request, min_version=version)
        return replace(request, exact_version=version) if gate else request

    def _once_more(self, request: Generate, answer: Generated | None) -> Generate:
        """A request that repeats this one after its answer: whole, the rest of it, or one that must be
        refused."""
        rng = self._rng
        have = answer.tokens if answer is not None else b""
        count = rng.randint(1, max(len(have) // 4, 1))
        accepted = hashlib.sha256(have[: 4 * count]).digest()
        again = replace(request, attempt=100 + rng.randrange(SEEDS))
        match rng.choice(("whole", "rest", "wrong prefix", "too long", "other contents")):
            case "rest" if have:
                return replace(again, accepted=count, accepted_sha256=accepted)
            case "wrong prefix":
                return replace(again, accepted=count, accepted_sha256=accepted[::-1])
            case "too long":
                longer = len(have) // 4 + 1
                return replace(again, accepted=longer, accepted_sha256=hashlib.sha256(have).digest())
            case "other contents":
                return replace(again, seed=request.seed ^ 1)
        return again

    async def _insist(self, system: ActorSystem, request: Generate) -> Generated | None:
        """Ask until there is an answer, or no further hope for one (None)."""
        rng, not_ready = self._rng, 0
        while True:
            found = await self._ask(system, request)
            if isinstance(found.answer, Generated):
                self._newest = max(self._newest, found.answer.version_end or 0)
                return found.answer
            if isinstance(found.answer, VersionNotReady):
                self._newest = max(self._newest, found.answer.applied or 0)
                not_ready += 1
                if not found.answer.retryable or not_ready >= MAX_NOT_READY:
                    return None
            elif found.answer is not None or found.refusal:
                return None
            await asyncio.sleep(rng.expovariate(1 / AGAIN_S))
            request = replace(request, attempt=request.attempt + 1)

    async def _ask(self, system: ActorSystem, request: Generate) -> RequestAnswered:
        low, high = PATIENCE_S
        patience_s = round(low * (high / low) ** self._rng.random(), 3)
        key = f"generate/{request.id}/{request.attempt}/{request.accepted}"  # as gleaner.rlctl.client has it
        asked_s, answer, refusal = self._now(), None, ""
        self._see(RequestAsked(asked_s, self._name, request))
        try:
            answer = await system.ask(MANAGER, request, expect=Message, deadline_s=patience_s, key=key)
        except Refused as problem:
            refusal = str(problem)
        except AskFailed:
            pass  # lost, or no receiver: the result is unknown
        found = RequestAnswered(self._now(), self._name, asked_s, request, answer, refusal)
        self._see(found)
        return found
