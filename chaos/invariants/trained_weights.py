"""Trained weights: those of each step follow from the samples that it must have been trained on.

Owns the expected weights by step. They are computed from the submission, the modelled engines and the true
scores, and compared with the digest in the published image.
"""

from collections.abc import Iterable, Iterator, Sequence

from gleaner.actors.cluster.state_manager import Rewound
from gleaner.actors.protocol.cluster import StepTrained
from gleaner.chaos.invariants.check import Check, some
from gleaner.chaos.invariants.facts import Committed, Fact
from gleaner.chaos.invariants.shadow import Shadow, ShadowRequest
from gleaner.chaos.invariants.truth import TrainedOn, Truth, score_of, whole

FLOOR = 1e-4
"""Added to the deviation of a group (DeepSeekMath, 4.1.1); written again here on purpose."""


class WeightsOfSamples(Check):
    """See the module."""

    fact_kinds = (Committed,)
    committed_kinds = (StepTrained, Rewound)
    name = "updates"
    promise = (
        "the weights of a step are those before it, updated with every scored sample of its groups: prompt, "
        "tokens, log-probs and the advantage over its group, in the recorded order"
    )
    meaning = (
        "If this fails, the optimizer got other numbers than the rollout made: a sample twice or not, "
        "another group's prompt, shifted log-probs, or advantages of the wrong size."
    )

    def __init__(self, shadow: Shadow, truth: Truth) -> None:
        self._shadow, self._truth = shadow, truth
        self._after: dict[int, tuple[bytes, int]] = {0: (truth.first_weights(), 0)}  # digest, updates
        self._records: dict[int, bytes] = {}  # root of the newest record

    def see(self, fact: Fact) -> Iterable[str]:
        for message in fact.messages if isinstance(fact, Committed) else ():
            if isinstance(message, StepTrained):
                yield from some(self._trained(message))
            elif isinstance(message, Rewound):
                self._after = {step: after for step, after in self._after.items() if step <= message.step}

    def _trained(self, event: StepTrained) -> Iterator[str]:
        if self._records.get(event.step) == event.root and event.step in self._after:
            return  # recorded again
        self._records[event.step] = event.root
        found, before = self._truth.weights(event.root), self._after.get(event.step - 1)
        batches, left_out = self._batches(event)
        yield from left_out
        if before is None or found is None or batches is None:
            if found is not None:
                self._after[event.step] = found, event.step
            return
        groups = [group for part in event.micro_batches for group in part]
        if len(set(groups)) != self._truth.wanted.prompts or len(set(groups)) != len(groups):
            yield (
                f"step {event.step} was trained on {len(groups)} groups {_shown(event.micro_batches)}, "
                f"{self._truth.wanted.prompts} are wanted"
            )
        digest, number = before
        if any(batches):
            number += 1
            digest = self._truth.next_weights(digest, number, [batch for batch in batches if batch])
        if found != digest:
            count = sum(map(len, batches))
            yield (
                f"step {event.step}: its weights are {found.hex()[:12]}; update {number} with the {count} "
                f"samples of its groups {_shown(event.micro_batches)} gives {digest.hex()[:12]}"
            )
        self._after[event.step] = found, number
        for old in [step for step in self._after if step < event.step - 64]:
            del self._after[old], self._records[old]

    def _batches(self, event: StepTrained) -> tuple[list[list[TrainedOn]] | None, list[str]]:
        """What a step must have been trained on, by micro-batch (None where the journal lacks a part), and
        samples that were left out or do not belong there."""
        name = f"step-{event.step}"
        batches, scored = list[list[TrainedOn]](), list[str]()
        for groups in event.micro_batches:
            batch: list[TrainedOn] = []
            for group in groups:
                requests = self._shadow.group(name, group)
                if not requests:
                    return None, []
                those = [one for one in requests if one.score is not None]
                scored += [one.id for one in those]
                samples = self._samples(those)
                if samples is None:
                    return None, []
                batch += samples
            batches.append(batch)
        recorded = [one.request for one in event.samples]
        if recorded == scored:
            return batches, []
        missing, extra = sorted(set(scored) - set(recorded)), sorted(set(recorded) - set(scored))
        return batches, [
            f"step {event.step}: recorded are {len(recorded)} samples, its groups have {len(scored)} with a "
            f"score; missing {missing[:3]}, too many {extra[:3]}"
        ]

    def _samples(self, scored: Sequence[ShadowRequest]) -> list[TrainedOn] | None:
        """The samples of a group that have a gradient; None where some of their weights are not known."""
        if len(scored) < 2:
            return []
        scores = [score_of(self._truth, one) or 0.0 for one in scored]
        found = []
        for one, advantage in zip(scored, advantages(scores), strict=True):
            made = whole(self._truth, one)
            if made is None:
                return None
            if made[0]:
                found.append(TrainedOn(self._prompt(one), *made, advantage))
        return found

    def _prompt(self, request: ShadowRequest) -> bytes:
        return self._truth.prompt(request.asked.split, request.asked.index)


def advantages(scores: Sequence[float]) -> list[float]:
    """By how many deviations of its group (sample variance) each score is above the mean."""
    if len(set(scores)) == 1:
        return [0.0 for _ in scores]
    mean = sum(scores) / len(scores)
    squares = sum((score - mean) ** 2 for score in scores)
    deviation = (squares / (len(scores) - 1)) ** 0.5
    return [(score - mean) / (deviation + FLOOR) for score in scores]


def _shown(micro_batches: Sequence[Sequence[int]]) -> str:
    return " | ".join(" ".join(map(str, groups)) for groups in micro_batches)
