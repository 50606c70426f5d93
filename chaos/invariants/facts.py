"""Facts: external observations of a run.

They are messages, commits, acknowledgements, and polls of sizes that could grow. Owns the shapes. A fact is
observed outside the actors; none is an actor's own report about itself. In a simulated run
`gleaner.chaos.observe_sim` makes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from gleaner.actors.protocol.requests import Generate
from gleaner.actors.training.records import AnyRecord
from gleaner.supervisor import Message


class Fact(msgspec.Struct, frozen=True):
    """Base of all. at_s: virtual seconds since the run began. Structs, as a run has thousands of them."""

    at_s: float


class Committed(Fact, frozen=True):
    """A journal committed these messages: from now on they survive any death."""

    host: str
    stream: str
    incarnation: int
    messages: Sequence[Message]
    snapshot: bool = False


class MessagePassed(Fact, frozen=True):
    """A message passed a process. direction: `in` or `out` of it, or `local`; mode: `tell`, `ask`, `reply`,
    `error`. process: `host/kind`."""

    process: str
    direction: str
    mode: str
    source: str
    to: str
    message: Message


class FramesAcknowledged(Fact, frozen=True):
    """An instance received the notice that its frames up to `seq` are journaled, so it may drop them."""

    stream: str
    incarnation: int
    seq: int


class FrameDelivered(Fact, frozen=True):
    """A process delivered envelopes of one frame of a control link to its actors. session: of two lives, with
    numbers from 1; first, count: the numbers that the frame covers; numbers: of the delivered envelopes, in
    order."""

    link: str
    session: tuple[int, ...]
    first: int
    count: int
    numbers: Sequence[int]


class RecordWritten(Fact, frozen=True):
    """A trainer requests that a step be recorded. newest: the step of the newest whole state on its host
    then, in memory or on disk, by the bytes that are there; -1: there is none."""

    host: str
    step: int
    newest: int


class ServedImage(Fact, frozen=True):
    """The bytes that an instance serves, at the moment of its announcement. digest: of these bytes;
    published: of the bytes published under that version and root, None where there are none."""

    host: str
    version: int
    root: bytes
    digest: bytes
    published: bytes | None


class LateWait(Fact, frozen=True):
    """A registered wait passed its deadline `late_s` ago, and no component has acted or reported it."""

    process: str
    who: str
    what: str
    on: str
    late_s: float


class ProcessFrozen(Fact, frozen=True):
    """A process has been frozen for `for_s`, measured in the running time of the process that must end it
    within a limit. ended: how the process ended, "" while it lives. others: another cause of that end, if
    there is one (a fault, the end of its parent or host, an order to stop)."""

    process: str
    for_s: float
    limit_s: float
    ended: str = ""
    others: str = ""


class DeclaredDead(Fact, frozen=True):
    """The head declares that a host was killed. stood_still_s: how long the head was frozen until now, or
    until shortly before. lives: the host's node agent has run all the time since before, and was
    reachable."""

    host: str
    stood_still_s: float
    lives: bool


class Measured(Fact, frozen=True):
    """A size that could grow, and its stated limit."""

    process: str
    what: str
    value: float
    limit: float


class Failed(Fact, frozen=True):
    """An uncaught exception reached the loop of a process."""

    process: str
    text: str


class VerifierAnswered(Fact, frozen=True):
    """A verifier computed the score of a response (u32, raw) to a problem; its answer may still be lost."""

    split: str
    index: int
    tokens: bytes


class RequestAsked(Fact, frozen=True):
    """A program outside of the cluster asks for a single request. caller: its name."""

    caller: str
    request: Generate


class RequestAnswered(Fact, frozen=True):
    """The result of that ask of `asked_s`: its answer, or the text of its refusal; neither: it was lost."""

    caller: str
    asked_s: float
    request: Generate
    answer: Message | None = None
    refusal: str = ""


class CommandAnswered(Fact, frozen=True):
    """The answer to a command of an operator, or the text of its refusal."""

    command: str
    message: Message
    answer: Message | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended. ended: the job reported that it is done and succeeded. waits: the oldest waits when it
    was cut off. quiet_s: virtual seconds between the end of the last fault and the end of the run.
    lost_commits: a power loss took back what journals had committed."""

    ended: bool
    virtual_s: float
    deadline_s: float
    reason: str = ""
    quiet_s: float = 0.0
    waits: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    history: Sequence[AnyRecord] = ()
    lost_commits: bool = False
