"""A verifiable task in tokens: prompts for the engines, scores for what they made of them.

Owns the joint of the two: a problem's text becomes prompt tokens (`prompts`), response tokens become text
and a score (`problems`). Does not own how responses are made. Imports the package of problems, which takes a
second or more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.reward.problems import Problems, Split
from actors.reward.prompts import Prompts
from actors.reward.sandbox.detection import AUTO
from actors.reward.verdicts import Judgement
from actors.reward.verifiers.port import VerifierSpec
from actors.reward.verifiers.registry import REASONING, make

DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a split. `prompt_tokens`: the question as the tokenizer's chat template puts it."""

    split: Split
    index: int
    question: str
    answer: str
    prompt_tokens: list[int]


class Task:
    """Problems and scores of one reasoning-gym task for one model. The same in every process.

    Scores are made in a sandbox, which the first one starts; `close` ends it.
    """

    def __init__(
        self,
        name: str,
        config: Mapping[str, object],
        seed: int,
        tokenizer: str | Path,
        isolation: str = AUTO,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """`config`: parameters of the task. `tokenizer`: Hugging Face checkpoint directory that holds
        tokenizer.json and, if its model wants one, a chat template. isolation: of the
        sandbox; deadline_s: processor time of scores that are made together.

        Raises `BadTask` (unknown name, bad parameters) or `BadTokenizer`.
        """
        self._problems = Problems(name, config, seed)
        self._prompts = Prompts(tokenizer)
        self._verifier = make(
            VerifierSpec(name=REASONING, task=name, params=config, isolation=isolation, deadline_s=deadline_s)
        )

    @property
    def name(self) -> str:
        return self._problems.name

    def problem(self, split: Split, index: int) -> Problem:
        """Problem `index` of a split, from 0. Raises `BadTask`."""
        text = self._problems.problem(split, index)
        tokens = self._prompts.encode(text.question)
        return Problem(split, index, text.question, text.answer, tokens)

    def open(self) -> None:
        """Start the sandbox. Raises `NoSandbox`, `SandboxFailed`."""
        self._verifier.open()

    def close(self) -> None:
        """End the sandbox, if there is one."""
        self._verifier.close()

    def score(self, split: Split, index: int, tokens: Sequence[int]) -> Judgement:
        """What a response is worth, 0 to 1. Any integers score; unknown tokens are left out."""
        return self.score_all([(split, index, tokens)])[0]

    def score_all(self, items: Sequence[tuple[Split, int, Sequence[int]]]) -> list[Judgement]:
        """What responses are worth: split and index of each problem, tokens of the response."""
        return self._verifier.score_all(
            [
                (self._problems.entry(split, index), self._prompts.decode(tokens))
                for split, index, tokens in items
            ]
        )
