"""Trial score of one response, as in a job's reward worker, with details.

The details help the author of a problem or a function. Owns the times and the form of the output. Does not
own verifiers (`gleaner.actors.reward.verifiers`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.sandbox.detection import detect
from gleaner.actors.reward.source import BadTask, Split
from gleaner.actors.reward.task import own_params, source_of, spec_of
from gleaner.actors.reward.verdicts import OURS
from gleaner.actors.reward.verifiers.port import BadVerifier, VerifierSpec, trial_of
from gleaner.actors.reward.verifiers.registry import PYTHON, SERVICES, make
from gleaner.configs.schema import Config, Task

OUTSIDE = "none: the reward worker's own process"
"""Isolation of verifiers that execute and read nothing of a response."""


class Tried(msgspec.Struct, kw_only=True):
    """Result for a response. score: None where it has none. start_s: start of the sandbox with its imports,
    once a worker; wall_s, cpu_s: of this score. read, printed, refused: as in `Trial`."""

    task: str
    verifier: str
    isolation: str
    score: float | None
    status: str
    detail: str
    parts: Mapping[str, float]
    start_s: float
    wall_s: float
    cpu_s: float
    read: str
    printed: str
    refused: tuple[str, ...]

    @property
    def scored(self) -> bool:
        """The status is the response's own."""
        return self.status not in OURS


def task_of(config: Config, name: str) -> Task:
    """The task of that name, "" for the only one. Raises BadTask."""
    found = [task for task in config.task if name in ("", task.name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(task.name for task in config.task)
    raise BadTask(f"no task is named {name!r}; there are {names}" if name else f"name one of {names}")


def problem_of(task: Task, config: Config, split: Split, index: int) -> Entry:
    """A problem of the task's own data. Raises BadTask."""
    return source_of(task, config.job.seed).entry(split, index)


def verifier_spec(
    config: Config, task: Task | None, verifier: str, params: Mapping[str, object]
) -> VerifierSpec:
    """Spec of the verifier: of a task's, or of one by its name; `params` take precedence."""
    if task is not None and not verifier:
        spec = spec_of(task, config)
    else:
        spec = VerifierSpec(
            name=verifier,
            task=task.name if task else "problem",
            params=own_params(verifier, config),
            isolation=config.reward.sandbox.isolation,
            deadline_s=config.reward.deadline_s,
            scores=config.reward.scores.given,
        )
    return replace(spec, params={**spec.params, **params})


def tried(spec: VerifierSpec, entry: Entry, response: str, clock: Callable[[], float]) -> Tried:
    """Score it. clock: seconds. Raises BadVerifier, BadTask, NoSandbox, SandboxFailed."""
    verifier = make(spec)
    if problem := verifier.check(entry):
        raise BadTask(f"the problem is none for verifier {spec.name}: {problem}")
    began_s = clock()
    try:
        verifier.open()
        ready_s = clock()
        trial = trial_of(verifier, entry, response)
        done_s = clock()
    finally:
        verifier.close()
    judged = trial.judgement
    return Tried(
        task=spec.task,
        verifier=spec.name,
        isolation=_isolation(spec),
        score=None if judged.status in OURS else judged.score,
        status=judged.status,
        detail=judged.detail,
        parts=judged.parts,
        start_s=ready_s - began_s,
        wall_s=done_s - ready_s,
        cpu_s=judged.cpu_s,
        read=trial.read,
        printed=trial.printed,
        refused=trial.refused,
    )


def _isolation(spec: VerifierSpec) -> str:
    if spec.name in SERVICES or (spec.name == PYTHON and spec.params.get("trusted")):
        return OUTSIDE
    return detect(spec.isolation).isolation.value


__all__ = ["BadTask", "BadVerifier", "Tried", "problem_of", "task_of", "tried", "verifier_spec"]
