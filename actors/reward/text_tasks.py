"""TextTasks: scores texts whose problems come with them, by the verifiers of the settings' tasks.

Also runs programs. Needs neither a tokenizer nor the data of the tasks, so a service that trains nothing can
score. Owns the verifiers by task.
"""

from collections.abc import Mapping, Sequence

import msgspec

from gleaner.actors.reward import pipe
from gleaner.actors.reward.carried import Carried
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.source import BadTask
from gleaner.actors.reward.stages import pipeline_of
from gleaner.actors.reward.task import by_task, verifier_of
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers.code_runs import CodeRuns
from gleaner.actors.reward.verifiers.port import BadVerifier, Verifier, open_stage, score_stage
from gleaner.configs.schema import Config

"""Factory of a worker's scorer."""


class TextTasks:
    """See the module. verifiers, pipelines: by the name of their task. code: runs programs."""

    def __init__(
        self,
        verifiers: Mapping[str, Verifier],
        code: CodeRuns,
        pipelines: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._verifiers, self._code = dict(verifiers), code
        self._pipelines = dict(pipelines or {})

    @property
    def names(self) -> list[str]:
        """The tasks."""
        return list(self._verifiers)

    def open(self, stage: str = "") -> None:
        """Start every sandbox; with a stage those of the tasks that have it. Raises `NoSandbox`,
        `SandboxFailed`, `BadTask`."""
        try:
            for name, verifier in self._verifiers.items():
                if not stage:
                    verifier.open()
                elif stage in self._pipelines[name]:
                    open_stage(verifier, stage)
        except BadVerifier as problem:
            raise BadTask(str(problem)) from problem

    def close(self) -> None:
        """End every sandbox."""
        self._code.close()
        for verifier in self._verifiers.values():
            verifier.close()

    def check(self, task: str, entry: Entry) -> str:
        """The error of a problem for the verifier of a task, "" for none. Pure."""
        return self._verifiers[task].check(entry)

    def score_entries(self, items: Sequence[tuple[str, Entry, str]]) -> list[Judgement]:
        """See `Tasks.score_entries`."""
        return by_task({name: one.score_all for name, one in self._verifiers.items()}, items)

    def score_stage(self, stage: str, item: pipe.Scorable, carried: Carried) -> Judgement | Carried:
        """See `worker.ScoresStages`."""
        if not isinstance(item, pipe.TextItem):
            raise BadTask("this service scores texts; it has no tokenizer")
        entry = msgspec.json.decode(item.entry, type=Entry)
        return score_stage(self._verifiers[item.task], stage, entry, item.response, carried, None)

    def run_code(self, item: pipe.RunItem) -> pipe.RunOut:
        """See `worker.RunsCode`; the first one starts the sandbox."""
        return self._code.run(item)

    def score(self, split: str, index: int, tokens: Sequence[int]) -> Judgement:
        """See `worker.Scorer`: it has no tokenizer."""
        raise BadTask("this service scores texts; it has no tokenizer")

    def problem(self, split: str, index: int) -> None:
        """See `worker.Scorer`: it has no problems of its own."""
        raise BadTask("this service has no problems of its own: they come with each request")


def text_tasks(config: Config) -> TextTasks:
    """The tasks of the settings, their sandboxes not started. Raises `BadTask`."""
    verifiers = {task.name: verifier_of(task, config) for task in config.task}
    pipelines = {task.name: pipeline_of(task, staged=True) for task in config.task}
    return TextTasks(verifiers, CodeRuns(config.reward.sandbox.isolation), pipelines)


def make(config: Mapping[str, object]) -> TextTasks:
    """The scorer of a worker, of the job's "settings". With a "stage" the worker has only that one."""
    made = text_tasks(msgspec.convert(config["settings"], Config))
    made.open(str(config.get("stage", "")))
    return made
