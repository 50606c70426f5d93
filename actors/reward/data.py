"""`DataProblems`: problems of a user's file; no prompt is in two splits.

Owns the row of each (split, index). Rows are read on demand. The same file and seed give the same problems in
every process.
"""

import hashlib
import json
from random import Random

from gleaner.actors.reward import rows
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.source import BadTask, Split, TextProblem
from gleaner.actors.reward.tables import Table, table
from gleaner.configs.schema import HELDOUT_PROBLEMS, Task

HELDOUT_SHARE = 10
"""At most one problem of so many is held out where the settings name no file of held-out ones."""


class DataProblems:
    """The problems of a task's own data, by split and index; the warm start of made models uses the training
    problems. An index beyond the last problem begins again with the first."""

    def __init__(self, settings: Task, seed: int) -> None:
        """Raises `BadTask`."""
        self.name, self._fields, self._system = settings.name, settings.fields, settings.system
        data, heldout_data = settings.data, settings.heldout_data
        heldout = settings.heldout_problems or HELDOUT_PROBLEMS
        train = table(data)
        if not len(train):
            raise BadTask(f"{data}: there is no problem in it")
        kept, held = list(range(len(train))), list[int]()
        tested = train
        if heldout_data:
            tested = table(heldout_data)
            held = list(range(len(tested)))
            if not held:
                raise BadTask(f"{heldout_data}: there is no problem in it")
        else:
            held, kept = self._hold_out(train, min(heldout, max(1, len(train) // HELDOUT_SHARE)))
        shuffled = Random(f"{seed}/{self.name}")
        shuffled.shuffle(kept)
        shuffled.shuffle(held)
        self._splits: dict[Split, tuple[Table, list[int]]] = {
            "warmup": (train, kept),
            "train": (train, kept),
            "heldout": (tested, held),
        }

    def count(self, split: Split) -> int:
        """Problems of a split, at least one."""
        return len(self._splits[split][1])

    def entry(self, split: Split, index: int) -> Entry:
        """The problem at `index` of `split`. Raises `BadTask`, which names the line."""
        if index < 0:
            raise BadTask(f"task {self.name!r}: {split} problem {index}: indices begin at 0")
        source, numbers = self._splits[split]
        return self._read(source, numbers[index % len(numbers)])

    def problem(self, split: Split, index: int) -> TextProblem:
        """Question and answer, as texts."""
        found = self.entry(split, index)
        answer = found.answer if isinstance(found.answer, str) else json.dumps(found.answer)
        return TextProblem(split, index, found.question, answer)

    def _read(self, source: Table, number: int) -> Entry:
        try:
            return rows.entry(source.row(number), self._fields, self._system)
        except rows.BadRow as problem:
            raise BadTask(f"{source.place(number)}: {problem}") from None

    def _hold_out(self, source: Table, count: int) -> tuple[list[int], list[int]]:
        """The held-out rows, and the others. Prompts with the lowest hashes are held out, so that a repeated
        prompt is on one side, and adding rows moves few."""
        hashes = [(self._hash(source, number), number) for number in range(len(source))]
        hashes.sort()
        last = hashes[count - 1][0]
        held = [number for found, number in hashes if found <= last]
        kept = [number for found, number in hashes if found > last]
        if not kept:
            raise BadTask(
                f"{source.place(0).partition(': ')[0]}: {len(hashes)} problems are too few to hold one out; "
                "add some, or set heldout_data"
            )
        return sorted(held), sorted(kept)

    def _hash(self, source: Table, number: int) -> bytes:
        found = self._read(source, number)
        text = json.dumps([found.question, [[one.role, one.content] for one in found.messages]])
        return hashlib.blake2b(text.encode(), digest_size=16).digest()
