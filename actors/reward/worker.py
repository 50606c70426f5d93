"""Scoring process: `python -m gleaner.actors.reward.worker --scorer M:F --config JSON`.

M:F is MODULE:FACTORY. Owns one scorer and the two ends of its pipe. The scorer's faults stay here: its prints
are discarded, its errors become replies, its memory is limited. The pool detects a hang or a crash. It is no
sandbox: a scorer may still open files and sockets with the rights of this user.

The factory gets the JSON object and returns something with the methods of `Scorer`.
"""

import argparse
import importlib
import json
import math
import numbers
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, Protocol, cast, runtime_checkable

import msgspec

from gleaner.actors.reward import pipe
from gleaner.actors.reward.blobs import BlobFolder, Blobs, NoBlob
from gleaner.actors.reward.carried import INLINE_BYTES, Carried, packed, unpacked
from gleaner.actors.reward.case_limits import CaseLimits
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.verdicts import BLOB_LOST, OURS, OVERLOADED, PROGRAMS, Judgement
from gleaner.supervisor.process import die_with_parent

MAX_DETAIL = 500  # characters of an error that travel


class PosedProblem(Protocol):
    """A problem from a scorer."""

    @property
    def question(self) -> str: ...
    @property
    def prompt_tokens(self) -> list[int]: ...


class Scorer(Protocol):
    """What a worker runs. `gleaner.actors.reward.task.Task` is one."""

    def problem(self, split: str, index: int) -> PosedProblem: ...
    def score(self, split: str, index: int, tokens: Sequence[int]) -> float | Judgement: ...


@runtime_checkable
class ScoresEntries(Protocol):
    """A scorer of texts whose problems come with them."""

    def score_entries(self, items: Sequence[tuple[str, Entry, str]]) -> list[Judgement]:
        """The scores of responses: name of the task, problem and text of each."""


@runtime_checkable
class ReadsResponses(Protocol):
    """A scorer that gives responses as texts, for a service that scores them."""

    def read(self, split: str, index: int, tokens: Sequence[int]) -> tuple[str, Entry, str]:
        """Name of the task, problem and text of a response."""


@runtime_checkable
class RunsCode(Protocol):
    """A scorer that also runs programs of clients, in its sandbox."""

    def run_code(self, item: pipe.RunItem) -> pipe.RunOut:
        """What a program did. Any error is a failure of ours."""


@runtime_checkable
class ScoresTogether(Protocol):
    """A scorer for which many responses together cost less than each alone."""

    def score_all(self, items: Sequence[tuple[str, int, Sequence[int]]]) -> list[Judgement]: ...


@runtime_checkable
class ScoresWithin(Protocol):
    """A scorer that can limit the tests of programs."""

    def score_within(
        self, items: Sequence[tuple[str, int, Sequence[int]]], limits: Sequence[CaseLimits | None]
    ) -> list[Judgement]: ...


@runtime_checkable
class ScoresStages(Protocol):
    """A scorer whose items pass several stages."""

    def score_stage(self, stage: str, item: pipe.Scorable, carried: Carried) -> Judgement | Carried:
        """One stage of an item: its judgement, or what the next stage needs."""


def task(config: Mapping[str, object]) -> Scorer:
    """The default factory: the tasks of a job's "settings", for a model's "tokenizer". With a "stage" the
    worker has only that one."""
    from gleaner.actors.reward.task import from_settings  # slow to import; only workers pay for it

    made = from_settings(cast("Mapping[str, object]", config["settings"]), str(config["tokenizer"]))
    made.open(str(config.get("stage", "")))
    return cast("Scorer", made)


def load(name: str, config: Mapping[str, object]) -> Scorer:
    """The scorer that `MODULE:FACTORY` makes of a config."""
    module, _, factory = name.partition(":")
    return cast("Scorer", getattr(importlib.import_module(module), factory)(config))


def serve(
    make: Callable[[], Scorer], incoming: BinaryIO, outgoing: BinaryIO, blobs: Blobs | None = None
) -> None:
    """Answer items until the pipe ends. The first reply is `Ready`, or the reason why there is no scorer.
    blobs: of this host, where items pass several stages."""

    def reply(answer: pipe.Answer) -> None:
        outgoing.write(pipe.pack(answer))
        outgoing.flush()

    try:
        scorer = make()
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the pool reports whatever it is
        reply(pipe.Failed(describe(error)))
        return
    reply(pipe.Ready())
    while (item := pipe.read_item(incoming)) is not None:
        reply(answer_of(scorer, item, blobs))


def answer_of(scorer: Scorer, item: pipe.Item, blobs: Blobs | None = None) -> pipe.Answer:
    """The answer to one item; an error of the scorer is one too."""
    try:
        if isinstance(item, pipe.ProblemItem):
            posed = scorer.problem(item.split, item.index)
            return pipe.ProblemOut(posed.question, list(posed.prompt_tokens))
        if isinstance(item, pipe.ScoreItems):
            return pipe.ScoresOut(_together(scorer, item.items))
        if isinstance(item, pipe.RunItem):
            if not isinstance(scorer, RunsCode):
                raise TypeError(f"{type(scorer).__name__} runs no programs: it has no run_code")
            return scorer.run_code(item)
        if isinstance(item, pipe.ReadItem):
            return _read(scorer, item)
        if isinstance(item, pipe.StageItem):
            return _stage(scorer, item, blobs)
        return _together(scorer, [item])[0]
    except (Exception, SystemExit) as error:  # noqa: BLE001  # its verdict, whatever it is
        return pipe.Failed(describe(error))


def _read(scorer: Scorer, item: pipe.ReadItem) -> pipe.ReadOut:
    if not isinstance(scorer, ReadsResponses):
        raise TypeError(f"{type(scorer).__name__} makes no texts: it has no read")
    task, entry, response = scorer.read(item.split, item.index, item.tokens)
    return pipe.ReadOut(pipe.TextItem(task, msgspec.json.encode(entry), response))


def _stage(scorer: Scorer, item: pipe.StageItem, blobs: Blobs | None) -> pipe.Answer:
    """One stage. A program that does not travel with its item is a blob of this host."""
    if not isinstance(scorer, ScoresStages):
        raise TypeError(f"{type(scorer).__name__} has no stages: it has no score_stage")
    carried = unpacked(item.carried) if item.carried else Carried()
    if carried.blob:
        try:
            carried = msgspec.structs.replace(carried, program=_of_host(blobs).read(carried.blob))
        except NoBlob as problem:
            return pipe.ScoreOut(0.0, BLOB_LOST, str(problem)[:MAX_DETAIL])
    found = scorer.score_stage(item.stage, item.item, carried)
    if isinstance(found, Judgement):
        return _out(found)
    if len(found.program) > INLINE_BYTES:
        try:
            _of_host(blobs).put(found.program)
        except OSError as problem:  # of the host, not of the response: another one may have room
            text = f"no room for a program of {len(found.program)} bytes: {problem}"
            return pipe.ScoreOut(0.0, OVERLOADED, text[:MAX_DETAIL])
        found = msgspec.structs.replace(found, program=b"")
    return pipe.PassedOut(packed(found))


def _of_host(blobs: Blobs | None) -> Blobs:
    if blobs is None:
        raise TypeError("this worker was given no folder of blobs")
    return blobs


def _together(scorer: Scorer, items: Sequence[pipe.Scorable]) -> list[pipe.ScoreOut]:
    """The scores of items in their order; those with tokens together, and those with texts."""
    found: dict[int, pipe.ScoreOut] = {}
    texts = [at for at, item in enumerate(items) if isinstance(item, pipe.TextItem)]
    tokens = [at for at, item in enumerate(items) if isinstance(item, pipe.ScoreItem)]
    if texts:
        judged = _of_texts(scorer, [item for item in items if isinstance(item, pipe.TextItem)])
        found.update(zip(texts, map(_out, judged), strict=True))
    if tokens:
        scores = _of_tokens(scorer, [item for item in items if isinstance(item, pipe.ScoreItem)])
        found.update(zip(tokens, map(_out, scores), strict=True))
    return [found[at] for at in range(len(items))]


def _of_texts(scorer: Scorer, items: Sequence[pipe.TextItem]) -> list[Judgement]:
    if not isinstance(scorer, ScoresEntries):
        raise TypeError(f"{type(scorer).__name__} scores no texts: it has no score_entries")
    return scorer.score_entries(
        [(item.task, msgspec.json.decode(item.entry, type=Entry), item.response) for item in items]
    )


def _of_tokens(scorer: Scorer, items: Sequence[pipe.ScoreItem]) -> Sequence[float | Judgement]:
    whole = [(item.split, item.index, item.tokens) for item in items]
    limits = [item.limits for item in items]
    if isinstance(scorer, ScoresWithin) and any(limits):
        return scorer.score_within(whole, limits)
    if len(whole) > 1 and isinstance(scorer, ScoresTogether):
        return scorer.score_all(whole)
    return [scorer.score(*one) for one in whole]


def _out(judged: float | Judgement) -> pipe.ScoreOut:
    found = judged if isinstance(judged, Judgement) else Judgement(judged)
    if found.status not in PROGRAMS | OURS:
        raise ValueError(f"the status is {found.status!r:.80}, which is none")
    if not isinstance(found.score, numbers.Real):
        raise TypeError(f"the score is no number but {found.score!r:.80}")
    if not math.isfinite(found.score):
        raise ValueError(f"the score is {found.score}")
    return pipe.ScoreOut(float(found.score), found.status, found.detail[:MAX_DETAIL], found.tests)


def describe(error: BaseException) -> str:
    """Type and text of an error, cut to what may travel."""
    return f"{type(error).__name__}: {error}"[:MAX_DETAIL]


def _private_pipe() -> tuple[BinaryIO, BinaryIO]:
    """The pipe to the pool, out of reach of prints: descriptors 0 and 1 lead nowhere from now on."""
    incoming = os.fdopen(os.dup(0), "rb")
    outgoing = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    return incoming, outgoing


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the process."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="gleaner.actors.reward.worker", description=__doc__)
    parser.add_argument("--scorer", default="gleaner.actors.reward.worker:task", help="MODULE:FACTORY")
    parser.add_argument("--config", default="{}", help="JSON object for the factory")
    parser.add_argument("--memory-bytes", type=int, required=True, help="limit of the process's own memory")
    chosen = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a verifier that crashes must not fill the disk
    resource.setrlimit(resource.RLIMIT_DATA, (chosen.memory_bytes, chosen.memory_bytes))
    incoming, outgoing = _private_pipe()
    config = json.loads(chosen.config)
    blobs = BlobFolder(config["blobs"]) if config.get("blobs") else None

    def make() -> Scorer:
        scorer = load(chosen.scorer, config)
        os.dup2(0, 2)  # what broke at the start was worth the log; what verifiers print has no limit
        return scorer

    serve(make, incoming, outgoing, blobs)


if __name__ == "__main__":
    main()
