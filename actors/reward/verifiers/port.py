"""`Verifier`: port of a worker from response texts to judgements.

Owns the port and its errors. The trusted end of each verifier is an adapter beside this module. Code that
reads, parses or runs a response is a function that it calls inside the sandbox.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from gleaner.actors.reward.carried import Carried
from gleaner.actors.reward.case_limits import CaseLimits
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.sandbox.detection import AUTO
from gleaner.actors.reward.verdicts import Judgement


class BadVerifier(ValueError):
    """A verifier is unknown or cannot be used with these parameters; the text gives the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSpec:
    """A judge beside a verifier. weight, gate: as in the settings `[task.judge]`. params: of the judge."""

    weight: float
    gate: float
    params: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSpec:
    """The input for making a verifier.

    name: in `registry`. task: the name of its task, which is the dataset for `reasoning-gym`. params: of the
    verifier, from the task's settings. isolation: of its sandbox. deadline_s: processor time of one program,
    and of answers that are read together. judge: beside it; None: there is none. scores: of responses by
    their status, where it is not 0.
    """

    name: str
    task: str
    params: Mapping[str, object] = field(default_factory=dict)
    isolation: str = AUTO
    deadline_s: float = 2.0
    judge: JudgeSpec | None = None
    scores: Mapping[str, float] = field(default_factory=dict)


class Verifier(Protocol):
    """One verifier with its parameters. The first score starts its sandbox; `close` ends it."""

    def open(self) -> None:
        """Start the sandbox. Raises `NoSandbox`, `SandboxFailed`, `BadVerifier`."""

    def close(self) -> None:
        """End the sandbox, if there is one."""

    def score_all(self, items: Sequence[tuple[Entry, str]]) -> list[Judgement]:
        """The scores of responses, each with its problem: one judgement for each, in their order. An error of
        a response is a judgement with a status of the program; an error of the verifier, its sandbox or its
        service is one with a status of ours (`verdicts`). Raises `NoSandbox`, `SandboxFailed` if there is no
        sandbox at all."""

    def check(self, entry: Entry) -> str:
        """The error of a problem for this verifier, "" for none. Pure."""


@runtime_checkable
class LimitsTests(Protocol):
    """A verifier of programs whose tests can have limits of their own."""

    def score_within(
        self, items: Sequence[tuple[Entry, str]], limits: Sequence[CaseLimits | None]
    ) -> list[Judgement]:
        """As `score_all`, with the limits of each program; None: those of the verifier. Judgements of
        programs that had limits have `tests`."""


def scored_within(
    verifier: Verifier, items: Sequence[tuple[Entry, str]], limits: Sequence[CaseLimits | None]
) -> list[Judgement]:
    """The scores by a verifier, within the limits if it can have some."""
    if any(limits) and isinstance(verifier, LimitsTests):
        return verifier.score_within(items, limits)
    return verifier.score_all(items)


@runtime_checkable
class Staged(Protocol):
    """A verifier whose work is divided into stages, for workers that may be on different hosts."""

    def open_stage(self, stage: str) -> None:
        """As `open`, for one stage alone: nothing is started that the others need."""

    def score_stage(
        self, stage: str, entry: Entry, response: str, carried: Carried, limits: CaseLimits | None
    ) -> Judgement | Carried:
        """One stage of the score of a response: its judgement, or what the next stage needs. carried: what
        the stage before left. limits: of the tests of its program; None: the verifier's. Raises as
        `score_all`, BadCarried."""


def score_stage(
    verifier: Verifier, stage: str, entry: Entry, response: str, carried: Carried, limits: CaseLimits | None
) -> Judgement | Carried:
    """One stage by a verifier; one that is not divided does all in its only stage."""
    if isinstance(verifier, Staged):
        return verifier.score_stage(stage, entry, response, carried, limits)
    return scored_within(verifier, [(entry, response)], [limits])[0]


def open_stage(verifier: Verifier, stage: str) -> None:
    """Start what one stage needs."""
    if isinstance(verifier, Staged):
        verifier.open_stage(stage)
    else:
        verifier.open()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One response scored for the author of a problem or a function.

    read: the part of the response that the verifier reads, "" if unknown. printed: the output of its program.
    refused: requests that the sandbox refused.
    """

    judgement: Judgement
    read: str = ""
    printed: str = ""
    refused: tuple[str, ...] = ()


@runtime_checkable
class Tries(Protocol):
    """A verifier that can give more information on a score than its judgement."""

    def try_one(self, entry: Entry, response: str) -> Trial:
        """As `score_all` for one response, in a process of its own. Raises as `score_all`."""


def trial_of(verifier: Verifier, entry: Entry, response: str) -> Trial:
    """One response scored, with what the verifier can show. Raises as `score_all`."""
    if isinstance(verifier, Tries):
        return verifier.try_one(entry, response)
    return Trial(judgement=verifier.score_all([(entry, response)])[0])


@runtime_checkable
class NeedsTools(Protocol):
    """A verifier that needs programs of this machine beside the package's own."""

    def missing(self) -> str:
        """The name of a tool that is not installed here, with the remedy; "" where all are there."""
