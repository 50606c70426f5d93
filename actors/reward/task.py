"""A verifiable task in tokens: prompts for the engines, scores for what they made of them.

Owns the joint of the two: a problem's text becomes prompt tokens (`prompts`), response tokens become text
and a score (`problems`). Does not own how responses are made. Imports the package of problems, which takes a
second or more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.reward import verdicts
from actors.reward.problems import Problems, Split, answer_of
from actors.reward.prompts import Prompts
from actors.reward.sandbox.detection import AUTO, detect
from actors.reward.sandbox.host_end import HostSandbox
from actors.reward.sandbox.port import Limits, Sandbox, Status, Work
from actors.reward.verdicts import Judgement
from actors.reward.verifiers import reasoning


LIMITS = Limits(cpu_s=2.0, wall_s=30.0, memory_bytes=2**30)
"""Of one score: rules take microseconds; sympy on a formula that was made to hang does not."""


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
        limits: Limits = LIMITS,
    ) -> None:
        """`config`: parameters of the task. `tokenizer`: Hugging Face checkpoint directory that holds
        tokenizer.json and, if its model wants one, a chat template. isolation, limits: of the sandbox.

        Raises `BadTask` (unknown name, bad parameters) or `BadTokenizer`.
        """
        self._problems = Problems(name, config, seed)
        self._prompts = Prompts(tokenizer)
        self._isolation, self._limits = isolation, limits
        self._sandbox: Sandbox | None = None

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
        verifier = {"name": self.name, "params": self._problems.params}
        sandbox = HostSandbox(detect(self._isolation), [(reasoning.PREPARE, verifier)])
        sandbox.start()
        self._sandbox = sandbox

    def close(self) -> None:
        """End the sandbox, if there is one."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def score(self, split: Split, index: int, tokens: Sequence[int]) -> Judgement:
        """What a response is worth, 0 to 1. Any integers score; unknown tokens are left out."""
        return self.score_text(split, index, self._prompts.decode(tokens))

    def score_text(self, split: Split, index: int, response: str) -> Judgement:
        """What a response is worth: the package's `score_answer` of the answer in it.

        The answer is what stands between the last `<answer>` tags, else what follows the thinking. One that
        makes the package's verifier raise is none, and worth 0: models write anything.
        """
        if self._sandbox is None:
            self.open()
        assert self._sandbox is not None
        entry = self._problems.entry(split, index)
        work = Work(
            function=reasoning.FUNCTION,
            payload=reasoning.request(answer_of(response), entry),
            limits=self._limits,
        )
        outcome = self._sandbox.run(work)
        if outcome.status is not Status.OK:
            return verdicts.of_failure(outcome)
        if outcome.result.startswith(reasoning.RAISED):
            why = outcome.result.removeprefix(reasoning.RAISED).decode("utf-8", "replace")
            return Judgement(0.0, verdicts.NO_ANSWER, why)
        try:
            score = float(outcome.result[:32])
        except ValueError:
            return Judgement(0.0, verdicts.VERIFIER_FAILED, f"its result is no number: {outcome.result[:80]!r}")
        return Judgement(min(max(score, 0.0), 1.0) if score == score else 0.0)
