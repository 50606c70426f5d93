"""`Problems`: problems of `reasoning-gym`; no question is in two splits.

Owns the problem of each (split, index), and the place of the answer in a response. Does not own tokens
(`task`) or scores (`verifiers.reasoning`, inside the sandbox). Pure but for reading the package's own data
files: the same name, parameters and seed give the same problems in every process.

Importing this module imports `reasoning_gym`, which takes a second or more.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches

from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.gym import DATASETS, ProceduralDataset, create_dataset, extract_answer
from gleaner.actors.reward.source import SPLITS, BadTask, Split, TextProblem

SIXTEENTHS: dict[Split, int] = {"warmup": 8, "train": 6, "heldout": 2}
"""Share of all questions in each split: the warm start needs the most, scores the fewest."""

BLOCK = 4096
"""Draws of one dataset of the package. Some tasks prepare all of a dataset's problems when it is made, so the
stream is made in pieces."""

BLOCKS_KEPT = 4
"""Pieces in memory at a time: training and held-out problems are read from a few at once."""

BLOCKS = 2**10
"""Pieces of a stream, at most: four million draws."""

MISSES = 512
"""Draws in a row without a question of the wanted split. The rarest split misses that often once in 10^29;
more misses mean a task with so few questions that the split has none."""

OURS = frozenset({"seed", "size"})
"""Parameters of each task of the package that follow from the job's seed and from `BLOCK`."""

ANSWER_END = "</answer>"
THINK_END = "</think>"


class Problems:
    """The problems of one task, by split and index.

    The package's stream of problems is dealt out: problem n of a split is the n-th drawn one that belongs
    there. The question's own hash chooses the split, for any seed, so a question may occur again within a
    split and never in another one. Indices may be asked for in any order; a new highest one costs the draws
    up to it, tens of microseconds each.
    """

    def __init__(self, name: str, params: Mapping[str, object], seed: int) -> None:
        """`params` go to the task's configuration as they are. Raises `BadTask`."""
        if name not in DATASETS:
            raise BadTask(
                f"task {name!r} is none of the {len(DATASETS)} of reasoning-gym{_near(name, DATASETS)}"
            )
        self.name, self.params = name, dict(params)
        # The package draws problem n from seed + n: neighbouring seeds must not share a shifted stream. And
        # some tasks hand that sum to generators that refuse more than 32 bits.
        self._start = int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest()) % 2**31
        known = known_params(name)
        if unknown := sorted(params.keys() - set(known)):
            raise BadTask(
                f"task {name!r} has no parameter {', '.join(unknown)}{_near(unknown[0], known)}; it has "
                f"{', '.join(known) or 'none'}"
            )
        self._blocks: OrderedDict[int, ProceduralDataset] = OrderedDict()  # least recently used first
        self._dealt: dict[Split, list[int]] = {split: [] for split in SPLITS}  # draws of each split
        self._drawn = 0
        self._block(0)

    def problem(self, split: Split, index: int) -> TextProblem:
        """The problem at `index` of `split`. Raises `BadTask` if the split has no question left."""
        entry = self._draw(self._number(split, index))
        return TextProblem(split, index, str(entry["question"]), str(entry["answer"]))

    def entry(self, split: Split, index: int) -> Entry:
        """The problem with what its verifier needs: `info` is the package's own entry. Raises `BadTask`."""
        drawn = self._draw(self._number(split, index))
        return Entry(question=str(drawn["question"]), answer=str(drawn["answer"]), info=drawn)

    def _number(self, split: Split, index: int) -> int:
        """The draw that a split's index names."""
        dealt = self._dealt[split]
        if index < 0:
            raise BadTask(f"task {self.name!r}: {split} problem {index}: indices begin at 0")
        misses = 0
        while len(dealt) <= index:
            if misses == MISSES or self._drawn == BLOCK * BLOCKS:
                raise BadTask(
                    f"task {self.name!r} has no {split} problem {index}, {self._drawn} draws hold "
                    f"{len(dealt)}: its parameters leave too few different questions, or it is too high"
                )
            before = len(dealt)
            self._dealt[split_of(str(self._draw(self._drawn)["question"]))].append(self._drawn)
            self._drawn += 1
            misses = 0 if len(dealt) > before else misses + 1
        return dealt[index]

    def _draw(self, number: int) -> dict[str, object]:
        entry: dict[str, object] = self._block(number // BLOCK)[number % BLOCK]
        return entry

    def _block(self, number: int) -> ProceduralDataset:
        if number not in self._blocks:
            try:
                self._blocks[number] = create_dataset(
                    self.name, seed=self._start + number * BLOCK, size=BLOCK, **self.params
                )
            except (TypeError, AssertionError, ValueError) as error:
                raise BadTask(f"task {self.name!r} refuses the parameters {self.params}: {error}") from error
            if len(self._blocks) > BLOCKS_KEPT:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return self._blocks[number]


def known_params(name: str) -> list[str]:
    """The parameters of a task of the package, except those that are set here: seed and size."""
    _, settings = DATASETS[name]
    return [one.name for one in fields(settings) if one.init and one.name not in OURS]


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f", did you mean {near[0]!r}" if near else ""


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
