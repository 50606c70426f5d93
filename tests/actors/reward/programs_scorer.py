"""A scorer of programs, whose tokens are the bytes of a response; in place of a job's tasks and tokenizer."""

from collections.abc import Mapping, Sequence

from gleaner.actors.reward.case_limits import CaseLimits
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers.port import LimitsTests, VerifierSpec
from gleaner.actors.reward.verifiers.registry import make as verifier_of

ENTRY = Entry(question="?", tests=({"input": "2", "output": "4"},))
SPIN = "import time\nwhile time.process_time() < {}: pass\n"
"""Source before a program: it first uses so many processor seconds."""


class Programs:
    """Each problem is `ENTRY`."""

    def __init__(self, deadline_s: float) -> None:
        self._verifier = verifier_of(VerifierSpec(name="code", task="doubles", deadline_s=deadline_s))
        self._verifier.open()

    def score(self, split: str, index: int, tokens: Sequence[int]) -> Judgement:
        return self._verifier.score_all([(ENTRY, bytes(tokens).decode())])[0]

    def score_within(
        self, items: Sequence[tuple[str, int, Sequence[int]]], limits: Sequence[CaseLimits | None]
    ) -> list[Judgement]:
        assert isinstance(self._verifier, LimitsTests)
        return self._verifier.score_within([(ENTRY, bytes(one).decode()) for *_, one in items], limits)


def make(config: Mapping[str, object]) -> Programs:
    return Programs(float(str(config["deadline_s"])))
