"""Data check: validates a job's own problems row by row before a run.

Finds bad rows before a GPU is rented for them. Owns the walk over the rows and the list of findings.
`gleaner.actors.reward.rows` defines the meaning of a row; the verifier's `check` defines what the verifier
needs of it.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

import msgspec
from msgspec.structs import replace

from gleaner.actors.reward.data import DataProblems
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.prompts import BadConversation, BadTokenizer, Prompts
from gleaner.actors.reward.rows import BadRow
from gleaner.actors.reward.rows import entry as entry_of
from gleaner.actors.reward.sandbox.detection import NoSandbox
from gleaner.actors.reward.sandbox.program_pipes import SandboxFailed
from gleaner.actors.reward.source import BadTask
from gleaner.actors.reward.tables import Table, table
from gleaner.actors.reward.task import verifier_of
from gleaner.actors.reward.verdicts import OK, OURS
from gleaner.actors.reward.verifiers import responses
from gleaner.actors.reward.verifiers.port import BadVerifier, NeedsTools, Verifier
from gleaner.actors.reward.verifiers.registry import JUDGE, PROGRAMS, PYTHON
from gleaner.configs.schema import Config, JudgePart, Task

MAX_FINDINGS = 1000
"""Findings kept for one task; the rest is counted."""
REFERENCES = ("solution", "reference")
"""Names in a problem's `info` of a response that must score 1: its reference solution."""
ALL = 2**63
"""Scores every reference solution."""


class Finding(msgspec.Struct, frozen=True):
    """One finding. place: file and line."""

    place: str
    text: str


class Checked(msgspec.Struct, kw_only=True):
    """Findings in the data of one task. longest_tokens: longest prompt; 0 where no tokenizer was given.
    solutions: number of scored reference solutions."""

    task: str
    data: str
    verifier: str
    rows: int = 0
    train: int = 0
    heldout: int = 0
    longest_tokens: int = 0
    solutions: int = 0
    found: int = 0
    findings: list[Finding] = []

    def add(self, place: str, text: str) -> None:
        """Add a finding."""
        self.found += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(place, text))


def check(
    config: Config, tokenizer: Path | None, *, solutions: int, on_row: Callable[[int], None]
) -> list[Checked]:
    """Read every row of every task that has data. tokenizer: of the model, to measure prompts. solutions:
    rows of each file whose reference solution is scored, evenly spread over it, `ALL`, or 0 for none. on_row:
    called with the number of rows done. Raises `BadTask`, `BadTokenizer`, `NoSandbox`, `SandboxFailed`."""
    prompts = Prompts(tokenizer) if tokenizer is not None else None
    done = 0
    checked: list[Checked] = []
    for task in config.task:
        if not task.data:
            continue
        verifier = verifier_of(replace(task, judge=JudgePart()), config)  # solutions must score 1 by the rest
        found = Checked(task=task.name, data=task.data, verifier=task.verifier or PYTHON)
        checked.append(found)
        missing = isinstance(verifier, NeedsTools) and verifier.missing()  # `preflight` reports it
        try:
            for source in [task.data, *([task.heldout_data] if task.heldout_data else [])]:
                rows = table(source)
                for number, place, entry in _entries(rows, task, found):
                    done += 1
                    on_row(done)
                    if text := verifier.check(entry):
                        found.add(place, text)
                    if prompts is not None:
                        _measure(prompts, entry, place, config, found)
                    judged = task.verifier == JUDGE
                    if not (missing or judged) and _chosen(number, len(rows), solutions):
                        _solve(verifier, entry, cast("Mapping[str, object]", rows.row(number)), place, found)
        except BadVerifier as problem:
            found.add(f"task {task.name}", str(problem))
        finally:
            verifier.close()
        _split(task, config.job.seed, found)
    return checked


def _chosen(number: int, rows: int, most: int) -> bool:
    """Whether a row is one of the `most` that are evenly spread over the rows of a file."""
    return most >= rows or number * most // rows != (number - 1) * most // rows


def _entries(source: Table, task: Task, found: Checked) -> Iterator[tuple[int, str, Entry]]:
    for number in range(len(source)):
        found.rows += 1
        try:
            yield number, source.place(number), entry_of(source.row(number), task.fields, task.system)
        except BadRow as problem:
            found.add(source.place(number), str(problem))


def _measure(prompts: Prompts, entry: Entry, place: str, config: Config, found: Checked) -> None:
    most = config.engine.max_prompt_tokens
    try:
        count = len(prompts.of(entry))
    except (BadConversation, BadTokenizer) as problem:
        found.add(place, f"the chat template refuses it: {problem}")
        return
    found.longest_tokens = max(found.longest_tokens, count)
    if count > most:
        found.add(place, f"its prompt has {count} tokens, engine.max_prompt_tokens is {most}")


def _solve(verifier: Verifier, entry: Entry, row: Mapping[str, object], place: str, found: Checked) -> None:
    programs = found.verifier in PROGRAMS
    texts: list[object] = [entry.info.get(name) for name in REFERENCES]
    if programs:
        texts.append(row.get("solution"))  # for other verifiers it is a name of the answer
    solution = next((one for one in texts if isinstance(one, str)), None)
    if solution is None:
        return
    found.solutions += 1
    if programs:
        solution = responses.fenced(solution)
    (judged,) = verifier.score_all([(entry, solution)])
    if judged.status in OURS:
        found.add(place, f"its reference solution was not scored: {judged.status}: {judged.detail}")
    elif judged.status != OK or judged.score < 1.0:
        why = f": {judged.detail}" if judged.detail else ""
        status = "" if judged.status == OK else f" ({judged.status})"
        found.add(place, f"its reference solution scores {judged.score:g}{status}{why}")


def _split(task: Task, seed: int, found: Checked) -> None:
    """Number of problems in each split, and the problems that are in both files."""
    if found.found:
        return  # it cannot be split while rows cannot be read
    try:
        made = DataProblems(task, seed)
    except BadTask as problem:
        found.add(task.data, str(problem))
        return
    found.train, found.heldout = made.count("train"), made.count("heldout")
    if task.heldout_data:
        trained = {made.entry("train", index).question for index in range(found.train)}
        for index in range(found.heldout):
            question = made.entry("heldout", index).question
            if question in trained:
                found.add(task.heldout_data, f"held out and trained on: {question[:60]!r}")


__all__ = ["BadTask", "BadTokenizer", "Checked", "Finding", "NoSandbox", "SandboxFailed", "check"]
