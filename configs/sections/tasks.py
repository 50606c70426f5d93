"""Settings of problems."""

from typing import Annotated

from msgspec import Meta

from gleaner.configs.sections.values import (
    HostPath,
    Natural,
    NotNegative,
    Param,
    Section,
)

TRAIN_PROBLEMS, HELDOUT_PROBLEMS = 2048, 128
"""Defaults of a task whose settings give no number, if its data gives none either."""


class JudgePart(Section, frozen=True, kw_only=True):
    """A judge beside the task's own verifier: `weight` of a score is the judge's, by `[reward.judge]`. The
    rest is the own score; both are in the parts of the score."""

    weight: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Part of the score that is the judge's; 0: there is none. For a judge alone: `verifier = "judge"`."""
    gate: float = 0.0
    """Lowest own score with which the judge is called; with a lower one the judge's part is 0."""

    def __post_init__(self) -> None:
        if self.gate and not self.weight:
            raise ValueError("weight: expected more than 0 beside a gate: set it to the judge's part")


class Task(Section, frozen=True, kw_only=True):
    """Source of problems, and the scorer of their answers: a dataset of `reasoning-gym`, or a file of your
    own (docs/tasks.md). `[[task]]`, repeated, trains on several."""

    name: Annotated[str, Meta(min_length=1, max_length=80)] = "spell_backward"
    """Name of a reasoning-gym dataset; this one rewards every letter in its place, a slope to climb. With
    `data`: any name, for reports."""
    params: dict[str, Param] = {}
    """Arguments of that dataset (for example `max_word_len = 10`), or with `data` of the verifier."""
    data: HostPath = ""
    """Problems of your own: a .jsonl or .parquet file, or a folder that the package `datasets` has saved; it
    is read on the host of the reward workers."""
    heldout_data: HostPath = ""
    """Held-out problems of your own; "": some of `data` are held out, the same ones in every run."""
    fields: dict[str, str] = {}
    """Names of your columns for ours, for example `{ prompt = "question", answer = "final" }`; a dot leads
    into an object: `{ tests = "metadata.tests" }`."""
    system: str = ""
    """A system turn before each problem of `data` that has none."""
    verifier: str = ""
    """The scorer of responses (docs/tasks.md has the list); "": `reasoning-gym`, and with `data` the function
    of `[reward.function]`."""
    share: NotNegative = 0.0
    """Part of the problems that are this task's, beside other tasks' shares; 0 in all of them: each has as
    many as it has problems."""
    train_problems: Natural = 0
    """Problems to train on; drawn without repetition until all were used once. 0: all of `data`, or 2,048 of
    a dataset."""
    heldout_problems: Natural = 0
    """Problems scored before the first and after the last step and never trained on; 128 answers keep the
    standard error of a mean reward under 0.05. 0: 128, or as many as `heldout_data` has, at most 1,024."""
    judge: JudgePart = JudgePart()

    def __post_init__(self) -> None:
        if self.verifier == "judge" and self.judge.weight:
            raise ValueError(
                'judge.weight: expected 0 where verifier is "judge": all of the score is its own'
            )
        if not self.data:
            for name in ("heldout_data", "fields", "system"):
                if getattr(self, name):
                    raise ValueError(f"{name}: expected with data only: {self.name} makes its own problems")
            if self.verifier not in ("", "reasoning-gym"):
                raise ValueError(
                    f"verifier: expected reasoning-gym without data, got {self.verifier}: set data to a file"
                )
        elif self.verifier == "reasoning-gym":
            raise ValueError("verifier: reasoning-gym scores its own problems only; name another for data")
