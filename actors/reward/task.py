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


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a split. `prompt_tokens`: the question as the tokenizer's chat template puts it."""

    split: Split
    index: int
    question: str
    answer: str
    prompt_tokens: list[int]


class Task:
    """Problems and scores of one reasoning-gym task for one model. The same in every process."""

    def __init__(self, name: str, config: Mapping[str, object], seed: int, tokenizer: str | Path) -> None:
        """`config`: parameters of the task. `tokenizer`: Hugging Face checkpoint directory that holds
        tokenizer.json and, if its model wants one, a chat template.

        Raises `BadTask` (unknown name, bad parameters) or `BadTokenizer`.
        """
        self._problems = Problems(name, config, seed)
        self._prompts = Prompts(tokenizer)

    @property
    def name(self) -> str:
        return self._problems.name

    def problem(self, split: Split, index: int) -> Problem:
        """Problem `index` of a split, from 0. Raises `BadTask`."""
        text = self._problems.problem(split, index)
        tokens = self._prompts.encode(text.question)
        return Problem(split, index, text.question, text.answer, tokens)

    def score(self, split: Split, index: int, tokens: Sequence[int]) -> float:
        """Reward of a response, 0 to 1. Any integers score; unknown tokens are left out."""
        return self._problems.score(split, index, self._prompts.decode(tokens))
