"""Messages to the RewardProxy."""

import msgspec

from gleaner.supervisor import Message


class GetProblems(Message, frozen=True):
    """The prompts of these problems of a split ("train" or "heldout")."""

    split: str
    indices: list[int]


class Problems(Message, frozen=True):
    """Prompt tokens in the order of the indices."""

    prompts: list[list[int]]


class Score(Message, frozen=True):
    """Score the response `tokens` (u32, raw, little-endian) to a problem. Keyed by the request."""

    request: str
    split: str
    index: int
    tokens: bytes


class Verdict(Message, frozen=True):
    """The reward of a response. `status`: see `gleaner.actors.reward.verdicts`; score: None if it is one of
    ours, 0 if it is any other but ok."""

    request: str
    score: float | None
    status: str
    detail: str = ""


class Sickness(msgspec.Struct, frozen=True, kw_only=True):
    """A verifier that is sick: for how long, after how long the job ends (s), how many of its newest `of`
    verdicts failed, by status, and the text of the last one."""

    for_s: float
    limit_s: float
    of: int
    counts: dict[str, int]
    text: str

    @property
    def over(self) -> bool:
        """Its time to recover is over."""
        return self.for_s >= self.limit_s

    @property
    def words(self) -> str:
        """Counts and text, for display."""
        by_status = ", ".join(f"{status} {count}" for status, count in self.counts.items())
        found = f"{sum(self.counts.values())} of its last {self.of} verdicts failed ({by_status})"
        return f"{found}: {self.text}" if self.text else found
