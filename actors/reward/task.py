"""`Task`: a verifiable task in tokens (prompts, and scores of responses).

Owns the combination of the two: a problem's text becomes prompt tokens (`prompts`), response tokens become
text and a score (`verifiers`). Does not own how responses are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from gleaner.actors.reward import pipe
from gleaner.actors.reward.carried import Carried
from gleaner.actors.reward.case_limits import CaseLimits
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.mixture import Mixture
from gleaner.actors.reward.prompts import BadConversation, Prompts
from gleaner.actors.reward.source import BadTask, Source, Split, TextProblem
from gleaner.actors.reward.stages import pipeline_of
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers.port import (
    BadVerifier,
    JudgeSpec,
    Verifier,
    VerifierSpec,
    open_stage,
    score_stage,
    scored_within,
)
from gleaner.actors.reward.verifiers.registry import HTTP, JUDGE, PYTHON, make, name_of
from gleaner.configs.schema import Config, JudgePart
from gleaner.configs.schema import Task as Settings


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a split. `prompt_tokens`: the question as the tokenizer's chat template puts it."""

    split: Split
    index: int
    question: str
    answer: object
    prompt_tokens: list[int]


def source_of(settings: Settings, seed: int) -> Source:
    """The problems of a task. Raises `BadTask`."""
    if settings.data:
        from gleaner.actors.reward.data import DataProblems

        return DataProblems(settings, seed)
    from gleaner.actors.reward.problems import Problems  # loads reasoning-gym, a second or more

    return Problems(settings.name, settings.params, seed)


def spec_of(settings: Settings, config: Config) -> VerifierSpec:
    """The spec of a task's verifier."""
    name = name_of(settings.verifier, settings.data)
    return VerifierSpec(
        name=name,
        task=settings.name,
        params={**own_params(name, config), **settings.params},
        isolation=config.reward.sandbox.isolation,
        deadline_s=config.reward.deadline_s,
        judge=_judge_of(settings.judge, config) if settings.judge.weight else None,
        scores=config.reward.scores.given,
    )


def _judge_of(part: JudgePart, config: Config) -> JudgeSpec:
    return JudgeSpec(weight=part.weight, gate=part.gate, params=own_params(JUDGE, config))


def own_params(name: str, config: Config) -> dict[str, object]:
    """Parameters of a verifier that has a section of its own in the settings."""
    if name == JUDGE:
        judge = config.reward.judge
        return {
            **msgspec.structs.asdict(judge),
            "place": "url",
            "url": judge.base_url,
            "model": judge.served_model,
            "workers": judge.workers or config.reward.workers,
        }
    section = {PYTHON: config.reward.function, HTTP: config.reward.http}.get(name)
    return msgspec.structs.asdict(section) if section else {}


def verifier_of(settings: Settings, config: Config) -> Verifier:
    """The verifier that a task's settings name. Raises `BadTask`."""
    share = config.reward.share
    if share.with_:
        from gleaner.actors.reward.verifiers.shared_service import SharedVerifier  # HTTP

        return SharedVerifier(settings.name, share, share.job or config.job.name)
    try:
        return make(spec_of(settings, config))
    except BadVerifier as problem:
        raise BadTask(str(problem)) from problem


class MixedSource:
    """Problems of all tasks of a job, in their order; a model that is made learns the words of all."""

    name = "mixed"

    def __init__(self, sources: Sequence[Source], mixture: Mixture) -> None:
        self._sources, self._mixture = sources, mixture

    def problem(self, split: Split, index: int) -> TextProblem:
        """See `Source`."""
        task, number = self._mixture.place(index)
        return self._sources[task].problem(split, number)

    def entry(self, split: Split, index: int) -> Entry:
        """See `Source`."""
        task, number = self._mixture.place(index)
        return self._sources[task].entry(split, number)


def mixed_source(config: Config) -> Source:
    """The problems of a job that a model is made from. Raises `BadTask`."""
    sources = [source_of(task, config.job.seed) for task in config.task]
    return sources[0] if len(sources) == 1 else MixedSource(sources, Mixture(config.shares()))


class Task:
    """Problems and scores of one task for one model. The same in every process.

    Scores are made in a sandbox, which the first one starts; `close` ends it.
    """

    def __init__(self, settings: Settings, source: Source, verifier: Verifier, prompts: Prompts) -> None:
        self.name = settings.name
        self.pipeline = pipeline_of(settings, staged=True)
        self._source, self._verifier, self._prompts = source, verifier, prompts

    def problem(self, split: Split, index: int) -> Problem:
        """Problem `index` of a split, from 0. Raises `BadTask`, and `BadTokenizer` if the chat template
        refuses a question."""
        entry = self._source.entry(split, index)
        return Problem(split, index, entry.question, entry.answer, self._tokens(entry, split, index))

    def open(self, stage: str = "") -> None:
        """Start the sandbox, for one stage alone if that is given. Raises `NoSandbox`, `SandboxFailed`,
        `BadTask`."""
        try:
            if stage:
                open_stage(self._verifier, stage)
            else:
                self._verifier.open()
        except BadVerifier as problem:
            raise BadTask(str(problem)) from problem

    def close(self) -> None:
        """End the sandbox, if there is one."""
        self._verifier.close()

    def score(self, split: Split, index: int, tokens: Sequence[int]) -> Judgement:
        """The score of a response. Any integers score; unknown tokens are left out."""
        return self.score_all([(split, index, tokens)])[0]

    def score_all(self, items: Sequence[tuple[Split, int, Sequence[int]]]) -> list[Judgement]:
        """The scores of responses: split and index of each problem, tokens of the response."""
        return self.score_within(items, [None] * len(items))

    def score_within(
        self, items: Sequence[tuple[Split, int, Sequence[int]]], limits: Sequence[CaseLimits | None]
    ) -> list[Judgement]:
        """The same. limits: of the tests of each program; None: its verifier's."""
        read = [self.read(split, index, tokens) for split, index, tokens in items]
        return scored_within(self._verifier, read, limits)

    def score_stage(
        self, stage: str, index: int, item: pipe.ScoreItem, carried: Carried
    ) -> Judgement | Carried:
        """One stage of the score of a response to problem `index` of the task."""
        split = cast("Split", item.split)
        entry, text = self.read(split, index, item.tokens)
        return score_stage(self._verifier, stage, entry, text, carried, item.limits)

    def read(self, split: Split, index: int, tokens: Sequence[int]) -> tuple[Entry, str]:
        """The problem and the text of a response to problem `index` of the task."""
        return self._source.entry(split, index), self._prompts.decode(tokens)

    def score_entries(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        """The scores of texts, each with its problem, which need not be one of the task's own."""
        return self._verifier.score_all(items)

    def _tokens(self, entry: Entry, split: Split, index: int) -> list[int]:
        try:
            return self._prompts.of(entry)
        except BadConversation as problem:
            raise BadTask(f"task {self.name!r}: {split} problem {index}: {problem}") from problem


class Tasks:
    """The tasks of a job, each with its share of the problems; one is the common case."""

    def __init__(self, tasks: Sequence[Task], training: Mixture, heldout: Mixture) -> None:
        self._tasks = list(tasks)
        self._mixtures: dict[Split, Mixture] = {"warmup": training, "train": training, "heldout": heldout}

    def problem(self, split: Split, index: int) -> Problem:
        """Problem `index` of the job. Raises `BadTask`, `BadTokenizer`."""
        task, number = self._place(split, index)
        return self._tasks[task].problem(split, number)

    def name_of(self, split: Split, index: int) -> str:
        """The task of a problem."""
        return self._tasks[self._place(split, index)[0]].name

    def open(self, stage: str = "") -> None:
        """Start every sandbox; with a stage those of the tasks that have it. Raises `NoSandbox`,
        `SandboxFailed`, `BadTask`."""
        for task in self._tasks:
            if not stage or stage in task.pipeline:
                task.open(stage)

    def close(self) -> None:
        """End every sandbox."""
        for task in self._tasks:
            task.close()

    def score(self, split: Split, index: int, tokens: Sequence[int]) -> Judgement:
        """The score of a response."""
        return self.score_all([(split, index, tokens)])[0]

    def score_all(self, items: Sequence[tuple[Split, int, Sequence[int]]]) -> list[Judgement]:
        """The scores of responses; those of one task are scored together."""
        return self.score_within(items, [None] * len(items))

    def score_within(
        self, items: Sequence[tuple[Split, int, Sequence[int]]], limits: Sequence[CaseLimits | None]
    ) -> list[Judgement]:
        """The same. limits: of the tests of each program; None: its verifier's."""
        places = [self._place(split, index) for split, index, _ in items]
        found: dict[int, Judgement] = {}
        for task in dict.fromkeys(task for task, _ in places):
            own = [at for at, place in enumerate(places) if place[0] == task]
            asked = [(items[at][0], places[at][1], items[at][2]) for at in own]
            judged = self._tasks[task].score_within(asked, [limits[at] for at in own])
            found.update(zip(own, judged, strict=True))
        return [found[at] for at in range(len(items))]

    def score_stage(self, stage: str, item: pipe.Scorable, carried: Carried) -> Judgement | Carried:
        """See `worker.ScoresStages`. Raises `BadTask` for a text: this job has tokens."""
        if not isinstance(item, pipe.ScoreItem):
            raise BadTask("the stages of this job score tokens")
        task, number = self._place(cast("Split", item.split), item.index)
        return self._tasks[task].score_stage(stage, number, item, carried)

    def read(self, split: Split, index: int, tokens: Sequence[int]) -> tuple[str, Entry, str]:
        """See `worker.ReadsResponses`."""
        task, number = self._place(split, index)
        return (self._tasks[task].name, *self._tasks[task].read(split, number, tokens))

    def score_entries(self, items: Sequence[tuple[str, Entry, str]]) -> list[Judgement]:
        """The scores of texts: name of the task, problem and response of each. Raises `BadTask` for a name
        that no task has."""
        return by_task({task.name: task.score_entries for task in self._tasks}, items)

    def _place(self, split: Split, index: int) -> tuple[int, int]:
        if len(self._tasks) == 1:
            return 0, index
        return self._mixtures[split].place(index)


def by_task(
    scorers: Mapping[str, Callable[[Sequence[tuple[Entry, str]]], list[Judgement]]],
    items: Sequence[tuple[str, Entry, str]],
) -> list[Judgement]:
    """The scores of texts in their order; those of one task are scored together. Raises `BadTask`."""
    found: dict[int, Judgement] = {}
    for task in dict.fromkeys(name for name, _, _ in items):
        if task not in scorers:
            raise BadTask(f"no task is named {task!r:.80}; there are {', '.join(scorers)}")
        own = [(at, entry, text) for at, (name, entry, text) in enumerate(items) if name == task]
        judged = scorers[task]([(entry, text) for _, entry, text in own])
        found.update(zip((at for at, _, _ in own), judged, strict=True))
    return [found[at] for at in range(len(items))]


def tasks_of(config: Config, tokenizer: str | Path) -> Tasks:
    """The tasks of a job. tokenizer: Hugging Face checkpoint directory that holds tokenizer.json and, if
    its model wants one, a chat template. Raises `BadTask`, `BadTokenizer`."""
    prompts = Prompts(tokenizer)
    made = [
        Task(one, source_of(one, config.job.seed), verifier_of(one, config), prompts) for one in config.task
    ]
    return Tasks(made, Mixture(config.shares()), Mixture(config.shares(heldout=True)))


def from_settings(config: Mapping[str, object], tokenizer: str) -> Tasks:
    """`tasks_of`, of settings as plain values."""
    return tasks_of(msgspec.convert(config, Config), tokenizer)
