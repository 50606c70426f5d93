"""Settings of rounds: which responses a step waits for."""

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gleaner.configs.sections.values import Section

ROLLPACKER = {
    "mode": "tail",
    "prompts_factor": 1.25,
    "samples_factor": 1.25,
    "seeds": "new",
    "race": "time",
}
"""Tail batching as RollPacker's paper has it."""


class Rounds(Section, frozen=True, kw_only=True):
    """Tail batching (RollPacker): most steps wait for short responses only, the others follow together."""

    mode: Literal["off", "tail", "auto"] = "off"
    """`off`: every step is rolled out whole. `tail`: a short round launches more prompts than count and
    trains on those whose responses are short; the others are deferred, and trained by a long round as soon as
    there are `rollout.prompts` of them. Pays where a step waits for its longest response while most of its
    engines are idle (docs/rounds.md). `auto`: whole steps at first, and `tail` as long as it is predicted to
    be faster; needs `seeding.controller = "model"`."""
    prompts_factor: Annotated[float, Meta(ge=1, le=2)] = 1.25
    """Prompts that a short round launches, over those that count. 1.25 gives four short rounds for each long
    one; nearer to 1, the hard prompts of a step no longer fit into what is deferred."""
    prompts_plan: Literal["fixed", "model"] = "fixed"
    """What decides the prompts that a short round launches. `fixed`: `prompts_factor`. `model`: that is the
    first factor, then the factor with the shortest predicted period follows, by one step of a grid from 1.125
    to 2 in a period at most; needs `seeding.controller = "model"`. Too small a factor costs far more than too
    large a one, and the best one follows the share of long prompts (docs/rounds.md)."""
    samples_factor: Annotated[float, Meta(ge=1, le=2)] = 1.0
    """Samples of a prompt that a short round launches, over those that count. Above 1 the longest ones of
    each prompt are never trained: responses become shorter than the policy makes them, and a page of figures
    shows by how much (docs/rounds.md). 1: nothing is thrown away."""
    seeds: Literal["own", "new"] = "own"
    """Randomness of a deferred prompt when it is rolled out again. `own`: that of its first launch, so what
    was long comes again; `new`: drawn anew, as in the paper, which favours short responses."""
    race: Literal["tokens", "time"] = "tokens"
    """What makes a response short. `tokens`: its length, so that what is trained does not depend on machines;
    `time`: that it ends early, as in the paper."""
    history: bool = False
    """A problem whose prompt was deferred by a short round is deferred at once when it is drawn again, three
    times, and then launched once more. Pays where problems return and many of them are long
    (docs/rounds.md); needs `seeds = "own"` and `samples_factor = 1`."""
    drain: bool = True
    """The last steps are long rounds as far as the deferred prompts need them; off: those of the end are
    never trained."""
    preset: Literal["", "rollpacker"] = ""
    """`rollpacker`: sets `mode`, both factors, `seeds` and `race` as the paper has them, to compare with."""

    def __post_init__(self) -> None:
        if self.preset:
            for name, value in ROLLPACKER.items():
                msgspec.structs.force_setattr(self, name, value)

    @property
    def on(self) -> bool:
        """Steps have rounds."""
        return self.mode != "off"

    def launched(self, prompts: int, samples: int) -> tuple[int, int]:
        """Prompts and samples of a prompt that a short round launches, where so many count."""
        return _times(self.prompts_factor, prompts), _times(self.samples_factor, samples)


def _times(factor: float, count: int) -> int:
    return math.ceil(round(factor * count, 9))  # 1.1 x 10 are 11
