"""Verifiable problems of the `reasoning-gym` package, split so that no question is in two splits.

Owns which problem a (split, index) names and what an answer is worth. Does not own tokens (`task`) or the
processes that score (RewardProxy). Pure but for reading the package's own data files: the same name,
parameters and seed give the same problems and scores in every process.

Importing this room imports `reasoning_gym`, which takes a second or more.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, get_args

from reasoning_gym.factory import DATASETS, create_dataset
from reasoning_gym.utils import extract_answer

Split = Literal["warmup", "train", "heldout"]
SPLITS: tuple[Split, ...] = get_args(Split)

SIXTEENTHS: dict[Split, int] = {"warmup": 8, "train": 6, "heldout": 2}
"""Share of all questions that falls to each split: the warm start sees the most, scores need the fewest."""

LARGEST_INDEX = 2**20 - 1
"""Problems of one split, at most; redraws of an index lie whole multiples of this range apart."""

REDRAWS = 512
"""Draws until a question falls in the wanted split. The rarest split misses that often once in 10^29; more
misses mean a task with so few questions that the split has none."""

ANSWER_END = "</answer>"
THINK_END = "</think>"


class BadTask(ValueError):
    """The task is unknown, refuses its parameters, or has too few questions; the text tells which."""


@dataclass(frozen=True, slots=True)
class TextProblem:
    """One problem before tokenization; `answer` is the package's own solution."""

    split: Split
    index: int
    question: str
    answer: str


class Problems:
    """The problems of one task, by split and index.

    Any index up to `LARGEST_INDEX` can be asked for at once, in any order. Within a split a question may
    come again under another index; across splits it cannot: the question's own hash decides on its split,
    whatever the seed.
    """

    def __init__(self, name: str, params: Mapping[str, object], seed: int) -> None:
        """`params` go to the task's configuration as they are. Raises `BadTask`."""
        if name not in DATASETS:
            near = get_close_matches(name, DATASETS, n=1)
            hint = f", did you mean {near[0]!r}" if near else ""
            raise BadTask(f"task {name!r} is none of the {len(DATASETS)} of reasoning-gym{hint}")
        self.name = name
        # 2^30 streams of 2^29 problems: neighbouring seeds must not share a shifted stream, and some tasks
        # hand seed + index to generators that refuse more than 32 bits.
        start = int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest(), "little") % 2**30
        try:
            self._dataset = create_dataset(
                name, seed=start, size=(LARGEST_INDEX + 1) * REDRAWS, **dict(params)
            )
        except (TypeError, AssertionError, ValueError) as error:
            raise BadTask(f"task {name!r} refuses the parameters {dict(params)}: {error}") from error

    def problem(self, split: Split, index: int) -> TextProblem:
        """The problem at `index` of `split`. Raises `BadTask` where the split has no question left."""
        entry = self._entry(split, index)
        return TextProblem(split, index, str(entry["question"]), str(entry["answer"]))

    def score(self, split: Split, index: int, response: str) -> float:
        """What the response is worth, from 0 to 1: the package's `score_answer` of the answer in it.

        The answer is what stands between the last `<answer>` tags, else what follows the thinking. An answer
        that makes the package's verifier raise is worth 0: models write anything.
        """
        entry = self._entry(split, index)
        try:
            score = float(self._dataset.score_answer(answer_of(response), entry))
        except Exception:  # noqa: BLE001  # a hundred foreign verifiers, parsing what a model made up
            return 0.0
        return min(max(score, 0.0), 1.0) if math.isfinite(score) else 0.0

    def _entry(self, split: Split, index: int) -> dict[str, object]:
        if not 0 <= index <= LARGEST_INDEX:
            raise BadTask(f"task {self.name!r} has problems 0 to {LARGEST_INDEX}, not {index}")
        for redraw in range(REDRAWS):
            entry: dict[str, object] = self._dataset[index + redraw * (LARGEST_INDEX + 1)]
            if split_of(str(entry["question"])) == split:
                return entry
        raise BadTask(
            f"task {self.name!r}: none of {REDRAWS} draws is a question of the split {split!r}: "
            "its parameters leave too few different questions"
        )


def split_of(question: str) -> Split:
    """The split that a question belongs to, in every run."""
    point = hashlib.blake2b(question.encode(), digest_size=1).digest()[0] % 16
    for split in SPLITS:
        point -= SIXTEENTHS[split]
        if point < 0:
            return split
    raise AssertionError("the shares do not add up to 16")


def answer_of(response: str) -> str:
    """The answer in a response, without its thinking, tags and outer blanks."""
    tagged: str | None = extract_answer(response) if ANSWER_END in response else None
    return (response.rpartition(THINK_END)[2] if tagged is None else tagged).strip()
