"""What can be seen of a run from outside: messages, commits, acknowledgements, looks at what could grow.

Owns the shapes. A fact is what somebody who stands beside the actors sees; none of it is an actor's opinion
of itself. In a simulated run `chaos.observe_sim` makes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from actors.rollout.single_messages import Generate
from supervisor import Message


class Fact(msgspec.Struct, frozen=True):
    """Base of all. at_s: virtual seconds since the run began. Structs, as a run has thousands of them."""

    at_s: float


class Committed(Fact, frozen=True):
    """A journal took these messages: from now on they are there whatever dies."""

    host: str
    stream: str
    incarnation: int
    messages: Sequence[Message]
    snapshot: bool = False


class Said(Fact, frozen=True):
    """A message passed a process. direction: `in` or `out` of it, or `local`; mode: tell, ask, reply, error.
    process: `host/kind`."""

    process: str
    direction: str
    mode: str
    source: str
    to: str
    message: Message


class FramesAcknowledged(Fact, frozen=True):
    """An instance was told that its frames up to `seq` are journaled: it may forget them."""

    stream: str
    incarnation: int
    seq: int


class HandedUp(Fact, frozen=True):
    """A process handed messages of one frame of a control link to its actors. session: of two lives, whose
    numbers begin at 1; first, count: the numbers that the frame covers; numbers: of those that were handed
    up, in order."""

    link: str
    session: tuple[int, ...]
    first: int
    count: int
    numbers: Sequence[int]


class PutOnRecord(Fact, frozen=True):
    """A trainer asks that a step be put on record. newest: the step of the newest whole state on its host
    then, in memory or on disk, by the bytes that are there; -1: there is none."""

    host: str
    step: int
    newest: int


class ServedImage(Fact, frozen=True):
    """The bytes from which an instance serves, at the moment that it says so. digest: of the bytes that are
    there; published: of those that were published under that version and root, None where none were."""

    host: str
    version: int
    root: bytes
    digest: bytes
    published: bytes | None


class LateWait(Fact, frozen=True):
    """A registered wait whose deadline passed `late_s` ago, and nobody has done or said anything."""

    process: str
    who: str
    what: str
    on: str
    late_s: float


class StoodStill(Fact, frozen=True):
    """A process has stood still for `for_s`, of the time in which the one that is to end it ran; that one has
    a limit. ended: how the process ended, "" while it lives. others: what else explains that end, if
    anything does (a fault, the end of its parent or host, an order to stop)."""

    process: str
    for_s: float
    limit_s: float
    ended: str = ""
    others: str = ""


class DeclaredDead(Fact, frozen=True):
    """The head says that a host was killed. stood_still_s: how long the head stood still until now, or until
    shortly before. lives: the host's node agent has run all the time since before, and could be heard."""

    host: str
    stood_still_s: float
    lives: bool


class Measured(Fact, frozen=True):
    """Something that could grow, and its stated limit."""

    process: str
    what: str
    value: float
    limit: float


class Failed(Fact, frozen=True):
    """An exception that nobody caught reached the loop of a process."""

    process: str
    text: str


class Asked(Fact, frozen=True):
    """A program outside of the cluster asks for a single request. caller: its name."""

    caller: str
    request: Generate


class Answered(Fact, frozen=True):
    """What became of that ask of `asked_s`: its answer, or the words of its refusal; neither: it was lost."""

    caller: str
    asked_s: float
    request: Generate
    answer: Message | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended. ended: the job said that it is done, and well. waits: the oldest waits when it was cut
    off. quiet_s: virtual seconds between the end of the last fault and the end of the run."""

    ended: bool
    virtual_s: float
    deadline_s: float
    reason: str = ""
    quiet_s: float = 0.0
    waits: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
