"""How far a followed request is: entered, committed, told. Shapes; `requests.token_followers` fills them."""

from dataclasses import dataclass

from gleaner.actors.rollout.state.request_log import RequestLog


@dataclass(slots=True)
class Followed:
    """One request and its follower."""

    id: str
    log: RequestLog
    follower: str
    entered: int  # tokens, counts from the first: in the log,
    committed: int  # in the journal,
    told: int  # and told
    new: bool = True  # nothing was told yet


Marks = list[tuple[Followed, int]]
"""How long followed requests were when a commit was begun."""
