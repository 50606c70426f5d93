"""Messages to the RewardProxy."""

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
