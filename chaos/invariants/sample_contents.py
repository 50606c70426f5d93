"""Sample contents: what reaches the trainer beside tokens.

Owns the comparison of groups that are handed out with the problem, the modelled engine and the verifier:
prompt, log-probs, length, score, and the samples of a group.
"""

from array import array
from collections.abc import Iterable, Iterator

from gleaner.actors.protocol.requests import Generated
from gleaner.actors.protocol.rollout import GroupOut, Groups, SampleOut
from gleaner.chaos.invariants.check import Check, some
from gleaner.chaos.invariants.facts import Fact, MessagePassed, RequestAnswered
from gleaner.chaos.invariants.shadow import Shadow, ShadowRequest
from gleaner.chaos.invariants.single_requests import BATCH
from gleaner.chaos.invariants.truth import Truth, score_of, whole


class TrueContents(Check):
    """See the module."""

    fact_kinds, message_kinds = (MessagePassed, RequestAnswered), (Groups,)
    name = "contents"
    promise = (
        "a group is handed out whole, with the prompt of its problem, the log-probs that its engines "
        "computed, whole responses and their true scores; an answer has the log-probs of its tokens"
    )
    meaning = (
        "If this fails, the gradient is that of another prompt, of false importance weights, or of the "
        "reward of a text that is not the response: training goes on, and learns something else."
    )

    def __init__(self, shadow: Shadow, truth: Truth) -> None:
        self._shadow, self._truth = shadow, truth

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, MessagePassed) and fact.direction == "out" and isinstance(fact.message, Groups):
            for group in fact.message.groups:
                yield from some(self._group(group))
        elif isinstance(fact, RequestAnswered) and isinstance(fact.answer, Generated):
            yield from self._answer(fact.answer)

    def _group(self, group: GroupOut) -> Iterator[str]:
        if not group.samples:
            yield f"group {group.group} was handed out without a sample"
            return
        batch = group.samples[0].request.partition("/")[0]
        due = self._shadow.group(batch, group.group)
        if not due:
            return  # released meanwhile
        names, wanted = [one.request for one in group.samples], [one.id for one in due]
        if names != wanted:
            yield f"group {group.group} of {batch} was handed out with {names}, its samples are {wanted}"
            return
        asked = due[0].asked
        if group.prompt != self._truth.prompt(asked.split, asked.index):
            yield (
                f"group {group.group} of {batch} was handed out with a prompt of {len(group.prompt) // 4} "
                f"tokens that is not the one of problem {asked.index} of {asked.split}"
            )
        for sample, known in zip(group.samples, due, strict=True):
            yield from self._sample(sample, known)

    def _sample(self, sample: SampleOut, known: ShadowRequest) -> Iterator[str]:
        made = whole(self._truth, known)
        if made is not None and sample.logprobs != made[1]:
            at = first_difference(sample.logprobs, made[1])
            yield f"{known.id} was handed out with a log-prob at position {at} that no engine computed for it"
        length = self._truth.length(known)
        if not known.due and len(known.tokens) != length:
            yield f"{known.id} was handed out with {len(known.tokens)} tokens, all of it are {length}"
        true = score_of(self._truth, known)
        if known.judged and sample.score != true:
            yield f"{known.id} was handed out with the score {sample.score}, true is {true}"

    def _answer(self, answer: Generated) -> Iterator[str]:
        """An answer to a single request."""
        known = self._shadow.requests.get(f"{BATCH}{answer.id}/0/0")
        made = whole(self._truth, known) if known is not None else None
        if made is not None and answer.logprobs != made[1][4 * answer.start :]:
            at = answer.start + first_difference(answer.logprobs, made[1][4 * answer.start :])
            yield f"{answer.id} was answered with a log-prob at position {at} that no engine computed for it"


def first_difference(one: bytes, other: bytes) -> int:
    """The first position at which two columns of f32 differ; the length of the shorter one for none."""
    mine, theirs = array("I", one), array("I", other)  # by their bits
    pairs = enumerate(zip(mine, theirs, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(mine), len(theirs)))
