"""Recovery time: what ended is replaced within the bound of its kind, and a job whose hosts are well moves.

Owns the time of the last progress. Ends, starts and faults are those of the simulated machines.
"""

from collections.abc import Iterable, Iterator

from gleaner.actors.cluster.fleet import RESERVED
from gleaner.actors.cluster.state_manager import Rewound
from gleaner.actors.engine.worker.worker import REGISTER_DEADLINE_S
from gleaner.actors.protocol.cluster import StepTrained
from gleaner.actors.reward.service_pool import READ_S
from gleaner.actors.reward.verifiers.service_verifier import LONGEST_WAIT_S
from gleaner.actors.rollout.fleet.membership import REREGISTER_S
from gleaner.actors.rollout.state.events import FrameLogged, Scored
from gleaner.actors.training.job_journal import EvalDone, StepFinished
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Committed, Fact
from gleaner.chaos.invariants.world_facts import HostLook, WorldSeen
from gleaner.configs.schema import Config
from gleaner.sim.run_setup import HEAD
from gleaner.supervisor.tree import MAX_BACKOFF_S

PROGRESS = (FrameLogged, Scored, StepTrained, StepFinished, EvalDone, Rewound)
"""Events of a job that moves."""


class RecoversInTime(Check):
    """See `promise`."""

    fact_kinds = (Committed, WorldSeen)
    name = "recovery time"
    promise = (
        "a process that ended is started again within the longest pause between restarts, and a job whose "
        "reserved host and head are well moves within the time of its slowest recovery"
    )
    meaning = "If this fails, the job ends all the same, later than it must: a recovery waits for a timeout."

    def __init__(self, config: Config) -> None:
        self._replaced_s = MAX_BACKOFF_S
        self._moves_s = config.rollout.deadline_s + REREGISTER_S + REGISTER_DEADLINE_S
        if config.reward.share.with_:  # the one process that makes texts may hang, then a call is made again
            self._moves_s += min(config.reward.problem_s, READ_S) + 2 * LONGEST_WAIT_S
        self._moved_s = 0.0
        self._found: set[tuple[str, str]] = set()

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, Committed):
            if any(isinstance(message, PROGRESS) for message in fact.messages):
                self._moved_s = fact.at_s
        elif isinstance(fact, WorldSeen) and fact.began:
            for look in fact.hosts.values():
                yield from self._look_at(look, fact.hosts.get(HEAD))
            yield from self._progress(fact)

    def _look_at(self, look: HostLook, head: HostLook | None) -> Iterator[str]:
        given_s = 0.0 if head is None else min(head.agent_s, head.steady_s)
        for kind, missing_s in look.missing.items():
            known = (look.name, kind) in self._found or look.noticed
            ready_s = min(missing_s, look.agent_s, look.steady_s)
            if missing_s >= look.agent_s:  # this node agent has never had it: the head gives it the job
                ready_s = min(ready_s, given_s)
            if not known and ready_s > self._replaced_s:
                self._found.add((look.name, kind))
                yield f"{look.name} has no {kind} for {missing_s:.1f} s; its node agent runs"

    def _progress(self, world: WorldSeen) -> Iterator[str]:
        still_s = min(world.at_s - self._moved_s, world.calm_s(HEAD, RESERVED), world.verifiers_s)
        if still_s > self._moves_s:
            self._moved_s = world.at_s
            yield f"no token, verdict or step for {still_s:.1f} s, in which head and {RESERVED} were well"
