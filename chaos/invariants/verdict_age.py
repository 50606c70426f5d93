"""Verdict age: a finished request has its verdict within a time that follows from the job's settings.

Owns since when each finished request has waited, by the journal, and since when nothing was against the
hosts that score. A fault begins the time anew: items then wait for another host or another proxy.
"""

from collections.abc import Iterable, Iterator

from gleaner.actors.protocol.requests import BATCH
from gleaner.actors.reward.host import CHECK_S, OFFER_DEADLINE_S
from gleaner.actors.rollout.batches.scoring import MAX_RETRY_S
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Fact
from gleaner.chaos.invariants.shadow import Shadow, ShadowRequest
from gleaner.chaos.invariants.world_facts import WorldSeen
from gleaner.configs.schema import Config
from gleaner.sim.run_setup import HEAD


class VerdictsInTime(Check):
    """See `promise`."""

    fact_kinds = (WorldSeen,)
    name = "verdict age"
    promise = "each finished request of a scored batch has a verdict, at most as late as its queue is long"
    meaning = "If this fails, an item was lost between the manager, the reward proxy and a reward host."

    def __init__(self, shadow: Shadow, config: Config) -> None:
        self._shadow = shadow
        reward = config.reward
        self._item_s = reward.deadline_s
        self._limit_s = (
            2 * config.liveness.dead_s  # a peer is given up, and the lives after it
            + OFFER_DEADLINE_S + CHECK_S  # its hosts are offered again
            + MAX_RETRY_S  # the manager asks again
            + reward.verdict_s  # of the item itself
        )  # fmt: skip
        self._since_s: dict[str, float] = {}
        self._scoring: dict[str, int] = {}  # node agents of hosts that score, by host
        self._changed_s = 0.0

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, WorldSeen):
            yield from self._look(fact)

    def _look(self, world: WorldSeen) -> Iterator[str]:
        scoring = {name: look.agent for name, look in world.hosts.items() if look.role in ("head", "reward")}
        if scoring != self._scoring:
            self._scoring, self._changed_s = scoring, world.at_s
        waiting = {request.id for request in self._shadow.requests.values() if _waits(request)}
        self._since_s = {name: self._since_s.get(name, world.at_s) for name in waiting}
        calm_s = min(world.calm_s(HEAD, *scoring), world.verifiers_s, world.at_s - self._changed_s)
        limit_s = self._limit_s + self._item_s * len(waiting)
        for name, since_s in self._since_s.items():
            if min(world.at_s - since_s, calm_s) > limit_s:
                self._changed_s = world.at_s  # once
                yield (
                    f"{name} has had no verdict for {world.at_s - since_s:.1f} s; all hosts that score were "
                    f"well for {calm_s:.1f} s, and {len(waiting)} requests wait"
                )
                return


def _waits(request: ShadowRequest) -> bool:
    done = request.judged or request.dropped
    return request.finished and not done and not request.batch.startswith(BATCH)
