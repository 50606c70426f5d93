"""Draws of whole simulated jobs that end with deferred ones: none is lost, and none is trained twice."""

from collections import Counter
from collections.abc import Iterator

from sim_kills import steps_of

from gleaner.actors.names import CONTROLLER
from gleaner.actors.protocol.batches import Prompt
from gleaner.actors.protocol.rollout import SubmitBatch
from gleaner.actors.training.draw_events import RoundDrawn, RoundSettled
from gleaner.configs.load import load
from gleaner.rlctl.audit.invariants import audit
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.run_setup import HEAD, RunSetup
from gleaner.supervisor.journal.group_commit import Write
from gleaner.supervisor.message import decode_body

PROMPTS, STEPS = 6, 4
PLAIN = [
    "task.heldout_problems=4",
    f"rollout.prompts={PROMPTS}",
    "rollout.samples=4",
    "engine.slots=8",
    "fleet.trace=",
]
TAIL = [*PLAIN, f"job.steps={STEPS}", "rounds.mode=tail", "rounds.prompts_factor=1.5", "rounds.drain=false"]

Draw = tuple[int, tuple[int, ...]]
"""A problem's number, and the seeds of its samples."""
Sample = tuple[int, int, int, int]
"""A problem's number, the seed, the number of tokens and their CRC-32. Tokens follow from the seed alone."""


class Draws:
    """What a whole job launched, trained and left.

    Attributes:
        launched: draws in the order of their first launch. queued: those that wait at the job's end.
        trained: samples.
    """

    def __init__(self, settings: list[str]) -> None:
        self._prompts: dict[tuple[str, int], Prompt] = {}
        self._numbers: dict[str, tuple[int, ...]] = {}  # draws, by batch
        self._queue: dict[int, Draw] = {}
        self.launched: list[Draw] = []
        cluster = SimCluster(RunSetup(load("quickstart", settings), seed=0))
        cluster.watch(self._look)
        cluster.hosts[HEAD].disk.on_commit = self._commit
        outcome = cluster.run()
        assert (outcome.ended, outcome.findings) == ("done", []), outcome.reason
        assert audit(evidence(outcome)) == []
        self.queued = list(self._queue.values())
        steps = steps_of(outcome).values()
        self.trained = Counter(
            self._sample(one.request, one.count, one.crc) for step in steps for one in step.samples
        )

    def _look(self, seen: ObservedMessage) -> None:
        message = seen.message
        if not isinstance(message, SubmitBatch) or seen.direction != "out":
            return
        batch = message.batch.batch
        drawn = self._numbers.get(batch, ())
        for group, prompt in enumerate(message.batch.prompts if batch.startswith("step-") else ()):
            is_again = (batch, group) in self._prompts
            self._prompts[batch, group] = prompt
            if not is_again and (not drawn or drawn[group] == len(self.launched)):
                self.launched.append((prompt.index, prompt.seeds))

    def _commit(self, write: Write) -> None:
        for row in write.rows if write.stream == CONTROLLER and not write.is_snapshot else ():
            event = decode_body(row.kind, row.body)
            if isinstance(event, RoundDrawn):
                self._numbers[event.batch] = event.draws
            elif isinstance(event, RoundSettled):
                for group, number in enumerate(self._numbers[event.batch]):
                    prompt = self._prompts[event.batch, group]
                    self._queue.pop(number, None)
                    if number in event.deferred:
                        self._queue[number] = (prompt.index, prompt.seeds)

    def _sample(self, request: str, count: int, crc: int) -> Sample:
        batch, group, sample = request.split("/")
        prompt = self._prompts[batch, int(group)]
        return prompt.index, prompt.seeds[int(sample)], count, crc


def samples_of(draws: list[Draw], tokens: Counter[Sample]) -> Iterator[Sample]:
    """The samples of these draws, with their tokens as another job had them."""
    known = {(index, seed): (count, crc) for index, seed, count, crc in tokens}
    for index, seeds in draws:
        yield from ((index, seed, *known[index, seed]) for seed in seeds)


def test_trained_and_queued_draws_are_those_of_the_plain_job_when_nothing_is_drained() -> None:
    tail = Draws(TAIL)
    plain = Draws([*PLAIN, f"job.steps={-(-len(tail.launched) // PROMPTS)}"])
    first = plain.launched[: len(tail.launched)]
    assert len(tail.queued) == len(tail.launched) - STEPS * PROMPTS > 0
    assert tail.launched == first
    assert tail.trained + Counter(samples_of(tail.queued, plain.trained)) == Counter(
        samples_of(first, plain.trained)
    )


def test_trained_draws_are_others_than_those_of_the_plain_job_when_seeds_are_new() -> None:
    tail = Draws([*TAIL, "rounds.seeds=new"])
    plain = Draws([*PLAIN, f"job.steps={-(-len(tail.launched) // PROMPTS)}"])
    assert tail.queued
    assert tail.trained - plain.trained, "each trained sample is one of the plain job"
