"""Several tasks in one job: each problem goes to its own task, and is scored by its verifier."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from actors.reward.entries import Entry
from actors.reward.mixture import Mixture
from actors.reward.source import BadTask, Split, TextProblem
from actors.reward.task import Task, Tasks, verifier_of
from actors.reward.verdicts import Judgement
from actors.training.new_tokenizer import CHAT_TEMPLATE, new_tokenizer
from configs.schema import Config
from configs.schema import Task as Settings
from tests.actors.reward.plain_prompts import prompts


class Numbered:
    """Problems that are their own numbers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def entry(self, split: Split, index: int) -> Entry:
        return Entry(question=f"{self.name} {split} {index}", answer=index)

    def problem(self, split: Split, index: int) -> TextProblem:
        raise NotImplementedError


class Notes:
    """A verifier that notes what it was given; the score is the problem's number."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.opened = self.closed = False

    def open(self) -> None:
        self.opened = True

    def close(self) -> None:
        self.closed = True

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        self.calls.append([entry.question for entry, _ in items])
        return [Judgement(float(entry.answer)) for entry, _ in items]

    def check(self, entry: Entry) -> str:
        return ""


@pytest.fixture
def two(tmp_path: Path) -> tuple[Tasks, Notes, Notes]:
    words = prompts(tmp_path)
    first, second = Notes(), Notes()
    tasks = [
        Task(Settings(name="a"), Numbered("a"), first, words),
        Task(Settings(name="b"), Numbered("b"), second, words),
    ]
    return Tasks(tasks, Mixture([2.0, 1.0]), Mixture([1.0, 1.0])), first, second


def test_problems_come_from_each_task_by_its_share(two: tuple[Tasks, Notes, Notes]) -> None:
    tasks, _, _ = two
    questions = [tasks.problem("train", index).question for index in range(6)]
    assert sorted(questions) == ["a train 0", "a train 1", "a train 2", "a train 3", "b train 0", "b train 1"]
    heldout = [tasks.name_of("heldout", index) for index in range(4)]
    assert sorted(heldout) == ["a", "a", "b", "b"]


def test_responses_are_scored_together_by_the_verifier_of_their_own_task(
    two: tuple[Tasks, Notes, Notes],
) -> None:
    tasks, first, second = two
    judged = tasks.score_all([("train", index, [1]) for index in range(6)])
    expected = [int(tasks.problem("train", index).question.split()[2]) for index in range(6)]
    assert [one.score for one in judged] == expected
    assert (len(first.calls), len(second.calls)) == (1, 1)
    assert sorted(first.calls[0]) == ["a train 0", "a train 1", "a train 2", "a train 3"]
    tasks.open()
    tasks.close()
    assert (first.opened, second.opened, first.closed, second.closed) == (True,) * 4


def test_an_unknown_verifier_is_refused_with_the_closest_one() -> None:
    with pytest.raises(BadTask, match="no verifier is named 'reasoning_gym'; did you mean reasoning-gym"):
        verifier_of(Settings(name="mine", data="/x.jsonl", verifier="reasoning_gym"), Config())


def test_a_conversation_that_the_chat_template_refuses_names_the_problem(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no system turns') }}")
    new_tokenizer(["a b"], []).save(str(tmp_path / "tokenizer.json"))
    assert "raise" not in CHAT_TEMPLATE
    task = Task(Settings(name="a"), Numbered("a"), Notes(), prompts(tmp_path))
    with pytest.raises(ValueError, match="no system turns"):
        task.problem("train", 3)
