"""What is rolled out together: the prompts of a batch, and which tokens count. Structs alone."""

from typing import Literal

import msgspec

from gleaner.actors.protocol.sampling_params import Sampling
from gleaner.actors.protocol.score_rows import Scores
from gleaner.supervisor import Message


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One group of a batch: a problem of the task, and a seed for each of its G samples."""

    split: str
    index: int
    tokens: tuple[int, ...]
    seeds: tuple[int, ...]


class BatchSubmitted(Message, frozen=True):
    """The prompts of a batch, in the order of their groups.

    Every token must be made under exactly `version`, the one that its step starts from; with `min_version`,
    under any version from that one on. scored: the manager requests a verdict for each finished request.

    `gleaner.actors.rollout.state.group_policy` decides what counts. wanted: groups that the batch ends with,
    0 = all of them.
    race: "" = none. With "tokens" or "time", which groups count is decided by the lengths of responses, or by
    when they end (`gleaner.actors.rollout.state.race`), before their verdicts are there. counted: samples of
    each group that count, the first to end in that order; the others are aborted. 0 = all.
    kind: of its round, "" without rounds and in whole steps. It changes nothing of the rollout: rewards are
    planned by the last batch of the same kind.
    drop_uniform: a complete group whose scores are all equal is dropped, and another prompt drawn in its
    place, up to `most` groups in all. over_sampling: this many prompts are in progress for each group that is
    still missing; when `wanted` groups are complete, the rest is aborted. again: a sample without a verdict
    of its own is generated again at most this many times. sampling: None leaves the distribution as it is.
    experts: the actor that receives which experts its tokens were routed to (`expert_messages`), or, if
    `scores` is set, which tokens were likeliest; "": none.
    """

    batch: str
    version: int
    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    temperature: float = 1.0
    wanted: int = 0
    most: int = 0
    race: Literal["", "tokens", "time"] = ""
    counted: int = 0
    drop_uniform: bool = False
    over_sampling: float = 1.0
    again: int = 0
    min_version: int | None = None
    scored: bool = True
    sampling: Sampling | None = None
    experts: str = ""
    scores: Scores | None = None
    kind: Literal["", "short", "long"] = ""

    def admits(self, version: int | None) -> bool:
        """Whether tokens made under this version may be in the batch; no token is made under None."""
        if self.min_version is None or version is None:
            return version == self.version
        return version >= self.min_version


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """`count` tokens of a request from position `start` on, made by one attempt under one version."""

    attempt: int
    instance: str
    incarnation: int
    version: int
    start: int
    count: int
