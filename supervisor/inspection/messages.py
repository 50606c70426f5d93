"""Messages about one actor of a process and about its undeliverable messages.

Owns questions and answers. The overview of a process (`Inspect`) and its waits (`ListWaits`) are in
`system_messages`, those of the tap in `tap`. All are sent to `SYSTEM`; none of them changes anything.
"""

import msgspec

from gleaner.supervisor.dead_letters import DeadLetter
from gleaner.supervisor.inspection.failures import ActorFailure
from gleaner.supervisor.message import Message
from gleaner.supervisor.system_messages import WaitState


class ListDeadLetters(Message, frozen=True):
    """Requests the counts, and the newest `limit` samples."""

    limit: int = 100


class DeadLettersOf(Message, frozen=True):
    """Undeliverable messages of one process: all of them by reason, and the newest. `now_s`: its loop
    time."""

    node: str
    process: str
    now_s: float
    counts: dict[str, int]
    samples: list[DeadLetter]


class Describe(Message, frozen=True):
    """Requests the full description of the actor `name`. Refused if it does not live here."""

    name: str


class HandlerShown(msgspec.Struct, frozen=True, kw_only=True):
    """One handler of an actor: which kind, on which lane, by which method."""

    kind: str
    lane: str
    method: str


class ActorDescribed(Message, frozen=True):
    """One actor. `age_s`: seconds of this incarnation, up to five of them late; `now_s`: the process's loop
    time, to which `failure.at_s` refers; `journal`: its stream, "" if it has none."""

    name: str
    incarnation: int
    node: str
    process: str
    pid: int
    endpoint: str
    now_s: float
    age_s: float
    state: str
    actor_class: str
    module: str
    purpose: str
    handlers: list[HandlerShown]
    waiting: dict[str, int]
    mailbox_limit: int
    handled: int
    dropped: int
    rate: float
    restarts: int
    last_failure: str
    failure: ActorFailure | None
    parent: str
    strategy: str
    owner: str
    children: list[str]
    watches: list[str]
    watched_by: list[str]
    waits: list[WaitState]
    journal: str
    figures: dict[str, str | int | float]
