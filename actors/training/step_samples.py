"""`StepContents`: contents of a running step so far, with samples of complete groups.

Pure.
"""

import zlib
from array import array
from dataclasses import dataclass, field

from gleaner.actors.protocol.cluster import TrainedSample
from gleaner.actors.protocol.rollout import GroupOut, SampleOut
from gleaner.actors.training.advantages import group_advantages
from gleaner.actors.training.sample import Sample
from gleaner.actors.training.staleness import Staleness


@dataclass(slots=True)
class StepContents:
    """Contents of the running step so far. scores, samples: without unscored samples, whose number is
    `unscored`. trained: groups, without those of the micro-batch that is computed."""

    staleness: Staleness
    groups: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    unscored: int = 0
    samples: list[TrainedSample] = field(default_factory=list)
    micro_batches: list[tuple[int, ...]] = field(default_factory=list)
    trained: int = 0

    def add(self, groups: list[GroupOut]) -> None:
        """One more micro-batch. Raises `BoundBroken`."""
        self.staleness.add(groups)
        self.groups += [group.group for group in groups]
        for group in groups:
            scored = _scored(group)
            self.scores += [score for _, score in scored]
            self.samples += [_trained(sample) for sample, _ in scored]
            self.unscored += len(group.samples) - len(scored)
        self.micro_batches.append(tuple(group.group for group in groups))

    @property
    def reward(self) -> float | None:
        """Mean of the scores; None without any."""
        return sum(self.scores) / len(self.scores) if self.scores else None


def samples_of(groups: list[GroupOut]) -> list[Sample]:
    """Samples to train on, each with its advantage over the scored samples of its group. A sample without a
    score is left out, and so is one without another to compare with."""
    return [
        Sample(
            prompt=array("I", group.prompt),
            response=array("I", sample.tokens),
            logprobs=array("f", sample.logprobs),
            advantage=advantage,
        )
        for group in groups
        if len(scored := _scored(group)) > 1
        for (sample, _), advantage in zip(
            scored, group_advantages([score for _, score in scored]), strict=True
        )
        if sample.tokens  # a response that ended at its deadline before its first token has no gradient
    ]


def _scored(group: GroupOut) -> list[tuple[SampleOut, float]]:
    return [(sample, sample.score) for sample in group.samples if sample.score is not None]


def _trained(sample: SampleOut) -> TrainedSample:
    return TrainedSample(request=sample.request, count=len(sample.tokens) // 4, crc=zlib.crc32(sample.tokens))
