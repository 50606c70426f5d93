"""Messages between actor systems, beneath the actors."""

from typing import ClassVar

from gleaner.supervisor.address import Address
from gleaner.supervisor.message import Message

SYSTEM = "$system"
"""The name under which every process answers these."""


class Watch(Message, frozen=True):
    """Notify the process at `endpoint` when one of these ends (name and incarnation). Repeated now and
    then."""

    endpoint: str
    watched: list[tuple[str, int]]
    public_key: str = ""


class Ended(Message, frozen=True):
    """A watched incarnation of the process at `endpoint` has ended."""

    endpoint: str
    name: str
    incarnation: int
    cause: str


class Heartbeat(Message, frozen=True):
    """To the parent of this process, which has this number: its loop turns."""

    pid: int


class LinkActors(Message, frozen=True):
    """`source` links itself to this incarnation, or undoes that: the end of one ends the other."""

    source: Address
    name: str
    incarnation: int
    linked: bool = True


class Failure(Message, frozen=True):
    """An ask failed. `code` is the name of the error's class."""

    code: str
    text: str


class Inspect(Message, frozen=True):
    """Requests a process's data for `rlctl ps` and `rlctl tree`."""


class ListWaits(Message, frozen=True):
    """Requests the waits of a process's actors: at most the `limit` oldest."""

    limit: int = 1000


class WaitState(Message, frozen=True):
    """`who` waits for `what` on `on`: for `since_s` seconds now, for at most `left_s` more. `expired`: how
    often its deadline passed and was renewed."""

    who: str
    what: str
    on: str
    since_s: float
    left_s: float
    expired: int = 0


class ExpiredWait(Message, frozen=True):
    """A wait that passed its deadline, at `at_s` of that process's loop time."""

    who: str
    what: str
    on: str
    waited_s: float
    reason: str
    at_s: float


class WaitsOf(Message, frozen=True):
    """The waits of one process, oldest first; `expired`: the newest that passed their deadline, `counts`: all
    of them by reason, `now_s`: that process's loop time."""

    node: str
    process: str
    now_s: float
    waits: list[WaitState]
    expired: list[ExpiredWait]
    counts: dict[str, int]


class ActorState(Message, frozen=True):
    """One actor or child of a process. `rate`: messages handled a second, lately; `parent`, `strategy`: of
    its supervisor; `pid`: 0 unless it is a process; `figures`: its own `summary`."""

    name: str
    incarnation: int
    state: str
    mailbox: int
    handled: int
    dropped: int
    restarts: int
    last_failure: str
    parent: str = ""
    pid: int = 0
    figures: dict[str, str | int | float] = {}
    mailbox_limit: int = 0
    rate: float = 0.0
    strategy: str = ""
    waits: int = 0
    oldest_wait_s: float = 0.0


class ProcessVitals(Message, frozen=True):
    """State of a process. `now_s`: its loop time; `lag_s`: how long its loop was held up at worst in the last
    ten seconds; `ask_counts`: asks answered, by `vitals.ASK_BOUNDS_S` and one more for slower ones;
    `ask_failed`: asks that failed, by error; `recoveries`: by `vitals.Recovery`. The figures of the operating
    system are 0 if they were not requested."""

    now_s: float
    lag_s: float
    waits: int
    oldest_wait_s: float
    ask_counts: list[int]
    ask_sum_s: float
    ask_failed: dict[str, int] = {}
    cpu_s: float = 0.0
    rss_bytes: int = 0
    files: int = 0
    recoveries: dict[str, int] = {}


class LinkFigures(Message, frozen=True):
    """The control links of a process. `states`: how many ends are in each; `unacked`: messages that the other
    ends have not acknowledged; `waiting`: senders that wait for free capacity; `totals`: messages sent and
    received, re-sent, and found double or missing on arrival, since the start."""

    states: dict[str, int]
    unacked: int
    waiting: int
    totals: dict[str, int]


class SystemState(Message, frozen=True):
    """One process. `left_out`: rows beyond what one answer holds."""

    node: str
    process: str
    pid: int
    endpoint: str
    actors: list[ActorState]
    refused: dict[str, int]
    dead_letters: dict[str, int]
    expired_waits: dict[str, int] = {}
    left_out: int = 0
    vitals: ProcessVitals | None = None
    links: LinkFigures | None = None
    suspects: dict[str, float] = {}
    """Processes that this one suspects to be dead: endpoint to phi."""


class ClaimNames(Message, frozen=True):
    """Claim names for the process at `endpoint`, in this `life` of it, and give up those that `ended` (name
    to incarnation). Sent when they change; `first`: all earlier names of that process are void."""

    endpoint: str
    life: int
    names: dict[str, int]
    ended: dict[str, int] = {}
    first: bool = False
    public_key: str = ""


class RenewLease(Message, frozen=True):
    """The process lives; it holds `count` names whose hashes sum up to `sum`. See
    `supervisor/names/leases.py`."""

    endpoint: str
    life: int
    count: int
    sum: int


class LeaseGranted(Message, frozen=True):
    """`superseded`: names that a newer incarnation holds; their actors here must end. `claim_again`: the
    registry's names differ from those that the process reports; the process must claim all names again."""

    lease_s: float
    superseded: dict[str, int] = {}
    claim_again: bool = False


class Unregister(Message, frozen=True):
    """An ordered stop, or a supervisor that saw the process end: these incarnations hold their names no
    longer."""

    names: dict[str, int]


class Lookup(Message, frozen=True):
    """Request the holder of `name`."""

    QUESTION: ClassVar[bool] = True
    name: str


class Found(Message, frozen=True):
    """`address` is None while the name has no holder."""

    address: Address | None


class ListNames(Message, frozen=True):
    """Everything that is registered, names starting with `prefix`."""

    QUESTION: ClassVar[bool] = True
    prefix: str = ""


class Names(Message, frozen=True):
    """Live registrations."""

    addresses: list[Address]
