"""Texts scored with problems that come with them: by task, in order, beside items of a job."""

from collections.abc import Sequence

import msgspec
import pytest

from gleaner.actors.reward import pipe
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.source import BadTask
from gleaner.actors.reward.text_tasks import TextTasks, text_tasks
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers.code_runs import CodeRuns
from gleaner.actors.reward.worker import answer_of
from gleaner.configs.load import from_tree


class Verifier:
    """Scores by its own factor the length of a response."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def open(self) -> None: ...

    def close(self) -> None: ...

    def check(self, entry: Entry) -> str:
        return ""

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        return [Judgement(self._factor * len(text)) for _, text in items]


TASKS = TextTasks({"one": Verifier(1.0), "ten": Verifier(10.0)}, CodeRuns("auto"))
ENTRY = msgspec.json.encode(Entry(question="?"))


def test_texts_of_several_tasks_are_scored_in_their_order() -> None:
    items = [pipe.TextItem(task, ENTRY, text) for task, text in (("ten", "a"), ("one", "bb"), ("ten", "ccc"))]
    assert answer_of(TASKS, pipe.ScoreItems(items)) == pipe.ScoresOut(
        [pipe.ScoreOut(10.0), pipe.ScoreOut(2.0), pipe.ScoreOut(30.0)]
    )
    assert answer_of(TASKS, items[1]) == pipe.ScoreOut(2.0)


def test_unknown_task_and_broken_problem_are_failures_of_ours() -> None:
    unknown = answer_of(TASKS, pipe.TextItem("two", ENTRY, "a"))
    assert isinstance(unknown, pipe.Failed)
    assert "no task is named 'two'" in unknown.detail
    assert isinstance(answer_of(TASKS, pipe.TextItem("one", b"{", "a")), pipe.Failed)
    assert isinstance(answer_of(TASKS, pipe.ScoreItem("train", 0, [1])), pipe.Failed)


def test_tasks_are_those_of_the_settings_without_their_data() -> None:
    tree = {"task": [{"name": "a", "verifier": "math", "data": "none.jsonl"}]}
    tasks = text_tasks(from_tree(tree, "test"))
    assert tasks.names == ["a"]
    with pytest.raises(BadTask, match="no tokenizer"):
        tasks.score("train", 0, [])
