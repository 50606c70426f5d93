"""What went into a running step so far, and complete groups as samples to train on. Pure."""

import zlib
from array import array
from dataclasses import dataclass, field

from actors.cluster.messages import TrainedSample
from actors.rollout.messages import GroupOut
from actors.training.advantages import group_advantages
from actors.training.sample import Sample
from actors.training.staleness import Staleness


@dataclass(slots=True)
class Gathered:
    """What went into the running step so far."""

    staleness: Staleness
    groups: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    samples: list[TrainedSample] = field(default_factory=list)
    micro_batches: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, groups: list[GroupOut]) -> None:
        """One more micro-batch. Raises `BoundBroken`."""
        self.staleness.add(groups)
        self.groups += [group.group for group in groups]
        self.scores += [sample.score for group in groups for sample in group.samples]
        self.samples += [_trained(group, i) for group in groups for i in range(len(group.samples))]
        self.micro_batches.append(tuple(group.group for group in groups))


def samples_of(groups: list[GroupOut]) -> list[Sample]:
    return [
        Sample(
            prompt=array("I", group.prompt),
            response=array("I", sample.tokens),
            logprobs=array("f", sample.logprobs),
            advantage=advantage,
        )
        for group in groups
        for sample, advantage in zip(
            group.samples, group_advantages([sample.score for sample in group.samples]), strict=True
        )
        if sample.tokens  # one that ended at its deadline before its first token has no gradient
    ]


def _trained(group: GroupOut, index: int) -> TrainedSample:
    sample = group.samples[index]
    return TrainedSample(request=sample.request, count=len(sample.tokens) // 4, crc=zlib.crc32(sample.tokens))
