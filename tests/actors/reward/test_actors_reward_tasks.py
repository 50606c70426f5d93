"""Several tasks in one job: each problem belongs to one task and is scored by that task's verifier."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from gleaner.actors.reward import pipe, worker
from gleaner.actors.reward.case_limits import CaseLimits
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.mixture import Mixture
from gleaner.actors.reward.proxy import settings_of_task
from gleaner.actors.reward.sandbox.detection import NoSandbox, detect
from gleaner.actors.reward.settings import RewardSettings
from gleaner.actors.reward.source import BadTask, Split, TextProblem
from gleaner.actors.reward.task import (
    MixedSource,
    Task,
    Tasks,
    from_settings,
    mixed_source,
    spec_of,
    verifier_of,
)
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.worker import ScoresWithin
from gleaner.actors.training.new_tokenizer import CHAT_TEMPLATE, new_tokenizer
from gleaner.configs.load import from_tree, load
from gleaner.configs.schema import Config, Function, Http, Reward
from gleaner.configs.schema import Task as Settings
from tests.actors.reward.plain_prompts import checkpoint, prompts

ROOT = Path(__file__).parents[3]


class Numbered:
    """Problems that consist of their numbers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def entry(self, split: Split, index: int) -> Entry:
        return Entry(question=f"{self.name} {split} {index}", answer=index)

    def problem(self, split: Split, index: int) -> TextProblem:
        raise NotImplementedError


class Notes:
    """A verifier that records its calls; the score is the problem's number."""

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


def test_responses_are_scored_together_by_their_task_verifier(
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


class Limited(Notes):
    """A verifier whose score is the limit of a test."""

    def score_within(
        self, items: Sequence[tuple[Entry, str]], limits: Sequence[CaseLimits | None]
    ) -> list[Judgement]:
        return [Judgement(one.max_s if one else 0.0) for one in limits]


def test_limits_reach_the_verifiers_that_have_tests(tmp_path: Path) -> None:
    words = prompts(tmp_path)
    of_programs = Task(Settings(name="a"), Numbered("a"), Limited(), words)
    of_answers = Task(Settings(name="b"), Numbered("b"), Notes(), words)
    tasks = Tasks([of_programs, of_answers], Mixture([1.0, 1.0]), Mixture([1.0, 1.0]))
    items = [("train", index, [1]) for index in range(4)]
    limits = [CaseLimits(10.0 + index) for index in range(4)]
    assert [tasks.name_of("train", index) for index in range(4)] == ["a", "b", "a", "b"]
    assert isinstance(tasks, ScoresWithin), "as a worker asks"
    assert [one.score for one in tasks.score_within(items, limits)] == [10.0, 0.0, 12.0, 1.0]
    assert [one.score for one in tasks.score_all(items)] == [0.0, 0.0, 1.0, 1.0]


def test_unknown_verifier_is_refused_with_the_closest_name() -> None:
    with pytest.raises(BadTask, match="no verifier is named 'reasoning_gym'; did you mean reasoning-gym"):
        verifier_of(Settings(name="mine", data="/x.jsonl", verifier="reasoning_gym"), Config())


def test_conversation_refused_by_the_template_names_the_problem(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no system turns') }}")
    new_tokenizer(["a b"], []).save(str(tmp_path / "tokenizer.json"))
    assert "raise" not in CHAT_TEMPLATE
    task = Task(Settings(name="a"), Numbered("a"), Notes(), prompts(tmp_path))
    with pytest.raises(ValueError, match="no system turns"):
        task.problem("train", 3)


def test_job_scores_own_problems_with_own_function(tmp_path: Path) -> None:
    config = load(ROOT / "docs" / "examples" / "own_reward" / "job.toml")
    settings = json.loads(
        json.dumps(settings_of_task(RewardSettings.of(config)))
    )  # as the configuration reaches a worker
    tasks = from_settings(settings, str(checkpoint(tmp_path)))
    words = prompts(tmp_path)
    try:
        problem = tasks.problem("train", 0)
        right, wrong = tasks.score_all(
            [("train", 0, words.encode(f"{problem.answer}")), ("train", 0, words.encode("none"))]
        )
    finally:
        tasks.close()
    assert (right.status, wrong.status) == ("ok", "ok")
    assert right.score > wrong.score == 0.0


def test_task_parameters_override_the_verifier_section() -> None:
    own = Function(call="a:f", style="verl")
    config = Config(reward=Reward(function=own, http=Http(url="http://x/", style="slime")))
    first = Settings(name="a", data="a.jsonl", params={"call": "b:g"})
    second = Settings(name="b", data="b.jsonl", verifier="http", params={"deadline_s": 3.0})
    third = Settings(name="c", data="c.jsonl", verifier="math", params={"boxed": True})
    params = [spec_of(task, config).params for task in (first, second, third)]
    assert (params[0]["call"], params[0]["style"]) == ("b:g", "verl")
    assert (params[1]["url"], params[1]["style"], params[1]["deadline_s"]) == ("http://x/", "slime", 3.0)
    assert params[2] == {"boxed": True}


def test_model_is_made_from_all_tasks() -> None:
    config = Config(task=(Settings(name="spell_backward"), Settings(name="chain_sum")))
    asked = [mixed_source(config).problem("warmup", index).question for index in range(6)]
    assert any("Spell this word backward" in question for question in asked)
    assert any("Spell" not in question for question in asked)
    assert not isinstance(mixed_source(Config()), MixedSource)


def code_job(folder: Path, params: dict[str, object], scores: dict[str, float]) -> dict[str, object]:
    """A worker's config for a task of programs."""
    tests = [{"input": "1", "output": "1"}]
    rows = [{"prompt": f"What is {n} ?", "tests": tests} for n in range(20)]
    (folder / "code.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = {"name": "t", "data": str(folder / "code.jsonl"), "verifier": "code", "params": params}
    reward = {"deadline_s": 12.0, "scores": scores}
    config = from_tree({"task": [task], "reward": reward}, "job.toml")
    settings = settings_of_task(RewardSettings(config.job, config.task, config.reward))
    return {"settings": settings, "tokenizer": str(checkpoint(folder))}


def test_worker_scores_statuses_by_the_settings(tmp_path: Path) -> None:
    try:
        detect("auto")
    except NoSandbox as problem:
        pytest.skip(str(problem))
    scorer = worker.task(code_job(tmp_path, {}, {"no_answer": -0.25}))
    asked, output = io.BytesIO(pipe.pack(pipe.ScoreItem("train", 0, [5, 6, 7]))), io.BytesIO()
    worker.serve(lambda: scorer, asked, output)
    output.seek(pipe.PREFIX.size + pipe.length(output.getvalue()[: pipe.PREFIX.size]))
    found = pipe.answer(output.read()[pipe.PREFIX.size :])
    assert isinstance(found, pipe.ScoreOut)
    assert (found.score, found.status) == (-0.25, "no_answer")


def test_worker_without_its_compiler_does_not_start(tmp_path: Path) -> None:
    params = {"language": "tiny", "compile": ["no-such-cc", "{output}"], "source": "main.tiny"}
    config, output = code_job(tmp_path, params, {}), io.BytesIO()
    worker.serve(lambda: worker.task(config), io.BytesIO(), output)
    found = pipe.answer(output.getvalue()[pipe.PREFIX.size :])
    assert isinstance(found, pipe.Failed)
    assert "task t: verifier code: no-such-cc is not installed here" in found.detail
