"""`Source`: port to the problems of a task: `problems` (package) or `data` (file)."""

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from gleaner.actors.reward.entries import Entry

Split = Literal["warmup", "train", "heldout"]
SPLITS: tuple[Split, ...] = get_args(Split)


class BadTask(ValueError):
    """The task is unknown, refuses its parameters, has too few questions, or its data cannot be used; the
    text names the cause and the place."""


@dataclass(frozen=True, slots=True)
class TextProblem:
    """One problem before tokenization; `answer` is the right one, as a text."""

    split: Split
    index: int
    question: str
    answer: str


class Source(Protocol):
    """Problems by split and index, the same in every process. name: of the task."""

    name: str

    def problem(self, split: Split, index: int) -> TextProblem:
        """The problem at `index` of `split`. Raises `BadTask` if there is none."""

    def entry(self, split: Split, index: int) -> Entry:
        """The same, with what its verifier needs. Raises `BadTask`."""
