"""Progress of a followed request: tokens entered, committed and sent. `requests.token_followers` fills it."""

from dataclasses import dataclass

from gleaner.actors.rollout.state.request_log import RequestLog


@dataclass(slots=True)
class FollowProgress:
    """One request and its follower."""

    id: str
    log: RequestLog
    follower: str
    entered: int  # tokens, counts from the first: in the log,
    committed: int  # in the journal,
    sent: int  # and sent
    new: bool = True  # nothing was sent yet


Marks = list[tuple[FollowProgress, int]]
"""Lengths of followed requests when a commit was started."""
