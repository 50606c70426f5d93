"""A step of two groups of two samples, with a refill, as facts; and the truth about it.

One change to one message makes a history that a check must report.
"""

import dataclasses
import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.cluster import StepTrained, TrainedSample
from gleaner.actors.protocol.instances import Dispatch, Work
from gleaner.actors.protocol.requests import Generate, Generated
from gleaner.actors.protocol.rollout import GroupOut, Groups, SampleOut, Weights
from gleaner.actors.rollout.journal.journaled_state import BatchWeights
from gleaner.actors.rollout.state.events import (
    BatchReleased,
    Dispatched,
    FrameLogged,
    GroupsAdded,
    GroupsDropped,
    GroupsKept,
    InstanceJoined,
    Scored,
    VersionPublished,
)
from gleaner.actors.training.draw_events import Drawn
from gleaner.actors.training.job_journal import StepFinished
from gleaner.actors.training.records import AnyRecord, Eval, Step
from gleaner.chaos.invariants.catalogue import jury_of
from gleaner.chaos.invariants.check import Found
from gleaner.chaos.invariants.contents import CONTENTS
from gleaner.chaos.invariants.facts import (
    Committed,
    Fact,
    MessagePassed,
    RequestAnswered,
    RequestAsked,
    RunEnd,
    VerifierAnswered,
)
from gleaner.chaos.invariants.shadow import ShadowRequest
from gleaner.chaos.invariants.truth import TrainedOn, Wanted
from gleaner.rlctl.audit.invariants import Evidence
from gleaner.supervisor import Message

MANAGER, CONTROLLER, ENGINE = "rollout/manager", "training/controller", "spot-1/engine"
SCORES = {(0, 0): 1.0, (0, 1): 0.0, (1, 0): 1.0, (1, 1): 1.0, (2, 0): 0.0, (2, 1): 1.0}
LENGTH = 3
ADVANTAGE = 0.5 / (0.5**0.5 + 1e-4)  # of one right and one wrong sample: mean 0.5, deviation sqrt(0.5)


@dataclass
class SmallTruth:
    """Tokens count up from the seed, whose last digit is the score."""

    wanted: Wanted = field(
        default_factory=lambda: Wanted(
            problems=10, prompts=2, samples=2, drop_uniform=True, max_refills=1, max_new_tokens=LENGTH,
            temperature=0.5,
        )
    )  # fmt: skip
    published: dict[bytes, bytes] = field(default_factory=dict)

    def prompt(self, split: str, index: int) -> bytes:
        return array("I", [index + 1, 7]).tobytes()

    def score(self, split: str, index: int, tokens: bytes) -> float:
        return float(array("I", tokens)[0] % 10) if len(tokens) == 4 * LENGTH else 0.25

    def seed(self, batch: str, group: int, sample: int) -> int:
        return 100 * group + 10 * sample + int(SCORES.get((group, sample), 0.0))

    def length(self, request: ShadowRequest) -> int:
        return LENGTH

    def made(self, request: ShadowRequest, root: bytes, count: int) -> tuple[bytes, bytes] | None:
        return tokens_of(request.seed, count), logprobs_of(request.seed, count)

    def weights(self, root: bytes) -> bytes | None:
        return self.published.get(root)

    def first_weights(self) -> bytes:
        return b"first"

    def next_weights(self, before: bytes, number: int, batches: Sequence[Sequence[TrainedOn]]) -> bytes:
        return hashlib.blake2b(repr((before, number, [list(batch) for batch in batches])).encode()).digest()

    def losses(self, weights: bytes) -> tuple[float, float]:
        return 0.25, 2.0


def tokens_of(seed: int, count: int = LENGTH) -> bytes:
    return array("I", [seed + at for at in range(count)]).tobytes()


def logprobs_of(seed: int, count: int = LENGTH) -> bytes:
    return array("f", [-(seed + at) / 8 for at in range(count)]).tobytes()


TRUTH = SmallTruth()


def commit(*messages: Message, stream: str = MANAGER) -> Committed:
    return Committed(1.0, "head", stream, 1, messages)


def prompts(*groups: int) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(
            split="train",
            index=group,
            tokens=tuple(array("I", TRUTH.prompt("train", group))),
            seeds=tuple(TRUTH.seed("step-1", group, sample) for sample in range(2)),
        )
        for group in groups
    )


def frame(seq: int, tickets: Sequence[int], seeds: Sequence[int]) -> FrameLogged:
    """The whole responses of these tickets."""
    return FrameLogged(
        instance=ENGINE,
        incarnation=5,
        seq=seq,
        tickets=array("I", [ticket for ticket in tickets for _ in range(LENGTH)]).tobytes(),
        tokens=b"".join(map(tokens_of, seeds)),
        logprobs=b"".join(map(logprobs_of, seeds)),
        flags=bytes(len(seeds) * LENGTH),
    )


def rolled_out(group: int) -> list[Fact]:
    """Both samples of a group are dispatched, decoded and scored."""
    names = tuple(f"step-1/{group}/{sample}" for sample in range(2))
    seeds = [TRUTH.seed("step-1", group, sample) for sample in range(2)]
    tickets = (2 * group + 1, 2 * group + 2)
    work = [
        Work(
            ticket=ticket,
            prompt=TRUTH.prompt("train", group),
            prefix=b"",
            seed=seed,
            max_new_tokens=LENGTH,
            temperature=0.5,
        )
        for ticket, seed in zip(tickets, seeds, strict=True)
    ]
    dispatch = Dispatch(epoch="1.1", version=0, work=work)
    answers = [VerifierAnswered(2.0, "train", group, tokens_of(seed)) for seed in seeds]
    scored = [Scored(request=name, score=SCORES[group, at]) for at, name in enumerate(names)]
    return [
        commit(Dispatched(instance=ENGINE, incarnation=5, version=0, tickets=tickets, requests=names)),
        MessagePassed(1.5, "head/rollout", "out", "ask", MANAGER, ENGINE, dispatch),
        commit(frame(group + 1, tickets, seeds)),
        *answers,
        commit(*scored),
    ]


def handed_out(*groups: int) -> Groups:
    return Groups(
        groups=[
            GroupOut(
                group=group,
                prompt=TRUTH.prompt("train", group),
                samples=tuple(
                    SampleOut(
                        request=f"step-1/{group}/{sample}",
                        tokens=tokens_of(TRUTH.seed("step-1", group, sample)),
                        logprobs=logprobs_of(TRUTH.seed("step-1", group, sample)),
                        score=SCORES[group, sample],
                        spans=(),
                    )
                    for sample in range(2)
                ),
            )
            for group in groups
        ],
        remaining=0,
        remote_serving=1,
    )


def trained_on(group: int, sample: int, advantage: float) -> TrainedOn:
    seed = TRUTH.seed("step-1", group, sample)
    return TrainedOn(TRUTH.prompt("train", group), tokens_of(seed), logprobs_of(seed), advantage)


def weights(scale: float = 1.0) -> bytes:
    """The weights after the step; `scale` of the advantages."""
    above = ADVANTAGE * scale
    samples = [(0, 0, above), (0, 1, -above), (2, 0, -above), (2, 1, above)]
    return TRUTH.next_weights(b"first", 1, [[trained_on(*sample) for sample in samples]])


def recorded(groups: Sequence[int] = (0, 2), missing: str = "") -> StepTrained:
    names = [f"step-1/{group}/{sample}" for group in groups for sample in range(2)]
    samples = [TrainedSample(request=name, count=LENGTH, crc=0) for name in names if name != missing]
    return StepTrained(step=1, samples=tuple(samples), root=b"r1", micro_batches=(tuple(groups),))


def story() -> list[Fact]:
    """The whole history, in which everything holds."""
    batch = BatchSubmitted(
        batch="step-1", version=0, prompts=prompts(0, 1), max_new_tokens=LENGTH, temperature=0.5, wanted=2,
        most=4, drop_uniform=True,
    )  # fmt: skip
    first = Drawn(batch="step-1", first=0, indices=(0, 1), returned=0, cursor=2)
    refill = Drawn(batch="step-1", first=2, indices=(2,), returned=0, cursor=3)
    served = BatchWeights(batch="step-1", weights=Weights(version=0, root=b"r0", sources=("a",)))
    return [
        commit(first, stream=CONTROLLER),
        commit(batch, served, InstanceJoined(instance=ENGINE, incarnation=5)),
        *rolled_out(0),
        *rolled_out(1),
        commit(
            GroupsKept(batch="step-1", groups=(0,)),
            GroupsDropped(batch="step-1", groups=(1,), why="uniform"),
        ),
        commit(refill, stream=CONTROLLER),
        commit(GroupsAdded(batch="step-1", first=2, prompts=prompts(2))),
        *rolled_out(2),
        commit(GroupsKept(batch="step-1", groups=(2,))),
        MessagePassed(4.0, "head/rollout", "out", "reply", MANAGER, "training/trainer", handed_out(0, 2)),
        commit(recorded(), stream="training/state"),
        commit(StepFinished(step=1), stream=CONTROLLER),
    ]


def record(
    reward: float = 0.5, tokens: int = 4 * LENGTH, grad_norm: float = 2.0, training_s: float = 0.5
) -> Step:
    """The step in the history."""
    return Step(
        t_s=9.0, step=1, reward=reward, samples=4, tokens=tokens, seeding_s=0.0, waiting_s=0.0,
        training_s=training_s, weights_s=0.0, step_s=1.0, t_seed_s=0.0, n_prem=1,
        grad_norm=grad_norm, loss=0.25,
    )  # fmt: skip


def changed(kind: type[Message], change: Callable[[Message], Message], number: int = 0) -> list[Fact]:
    """The story with the `number`-th message of a kind changed."""
    facts, seen = list[Fact](), 0

    def one(message: Message) -> Message:
        nonlocal seen
        if not isinstance(message, kind):
            return message
        seen += 1
        return change(message) if seen == number + 1 else message

    for fact in story():
        if isinstance(fact, Committed):
            facts.append(replace(fact, messages=tuple(map(one, fact.messages))))
        elif isinstance(fact, MessagePassed):
            facts.append(replace(fact, message=one(fact.message)))
        else:
            facts.append(fact)
    return facts


def replace_wanted(**fields: int) -> SmallTruth:
    """The truth of a job with other settings."""
    return SmallTruth(dataclasses.replace(TRUTH.wanted, **fields))  # type: ignore[arg-type]  # numbers alone


def evaluated(version: int = 0) -> tuple[list[Fact], Eval]:
    """An evaluation on two problems, one of them solved; and its record."""
    names = tuple(f"eval-first/{group}/0" for group in range(2))
    seeds = [TRUTH.seed("eval-first", group, 0) for group in range(2)]
    solved = [TRUTH.score("heldout", group, tokens_of(seed)) for group, seed in enumerate(seeds)]
    asked = tuple(
        Prompt(
            split="heldout",
            index=group,
            tokens=tuple(array("I", TRUTH.prompt("heldout", group))),
            seeds=(seed,),
        )
        for group, seed in enumerate(seeds)
    )
    batch = BatchSubmitted(batch="eval-first", version=version, prompts=asked, max_new_tokens=LENGTH)
    served = BatchWeights(batch="eval-first", weights=Weights(version=version, root=b"r0", sources=("a",)))
    facts = [
        commit(batch, served, InstanceJoined(instance=ENGINE, incarnation=5)),
        commit(Dispatched(instance=ENGINE, incarnation=5, version=version, tickets=(1, 2), requests=names)),
        commit(frame(1, (1, 2), seeds)),
        *(VerifierAnswered(2.0, "heldout", at, tokens_of(seed)) for at, seed in enumerate(seeds)),
        commit(*(Scored(request=name, score=score) for name, score in zip(names, solved, strict=True))),
        commit(BatchReleased(batch="eval-first")),
    ]
    mean = sum(solved) / 2
    spread = sum((score - mean) ** 2 for score in solved) / 2
    return facts, Eval(t_s=9.0, step=0, when="first", reward=mean, problems=2, variance=spread)


def answered(logprobs: bytes) -> list[Fact]:
    """A single request with seed 7, of which the caller has the first token and gets the rest."""
    asked = Prompt(split="", index=0, tokens=(1,), seeds=(7,))
    batch = BatchSubmitted(
        batch="generate-x", version=0, prompts=(asked,), max_new_tokens=LENGTH, min_version=0, scored=False
    )
    answer = Generated(
        id="x", status="length", start=1, tokens=tokens_of(7)[4:], logprobs=logprobs, versions=(),
        version_start=0, version_end=0, sha256=b"",
    )  # fmt: skip
    request = Generate(id="x", prompt=b"\1\0\0\0", max_new_tokens=LENGTH, seed=7)
    tickets = Dispatched(
        instance=ENGINE, incarnation=5, version=0, tickets=(1,), requests=("generate-x/0/0",)
    )
    return [
        commit(VersionPublished(version=0, root=b"r0", sources=("a",))),
        RequestAsked(0.5, "caller", request),
        commit(batch, InstanceJoined(instance=ENGINE, incarnation=5), tickets),
        commit(frame(1, (1,), [7])),
        RequestAnswered(3.0, "caller", 0.5, request, answer),
    ]


def judged(
    facts: Sequence[Fact],
    after: bytes | None = None,
    history: Sequence[AnyRecord] = (),
    truth: SmallTruth | None = None,
) -> list[Found]:
    """What the checks of contents report. after: the weights that are published for the step."""
    truth = truth or SmallTruth()
    truth.published[b"r1"] = weights() if after is None else after
    jury = jury_of(None, truth=truth)
    for fact in facts:
        jury.see(fact)
    ending = RunEnd(ended=False, virtual_s=9.0, deadline_s=99.0, history=history)
    names = {check.name for check in CONTENTS}
    found = jury.close(Evidence(steps=1, requests_per_step=4, complete=True), ending)
    return [one for one in found if one.check in names]
