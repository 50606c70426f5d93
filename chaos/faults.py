"""Faults: all kinds as typed values with place, duration and JSON form.

Owns the shapes and their ranges. Does not inject faults (`apply_sim` does in simulated clusters), draws none
(`swarm` does) and knows no schedule (`schedule`). Every temporary fault contains its duration, so a schedule
alone determines when the last of it is over.

**Where.** A host by its name (`spot-2`, `reserved-1`, `head`), or by its place among those that are up when
the fault fires: `@preemptible`, or `@preemptible/1` for the second one by name (counted round). A fault whose
target does not exist does not fire, and is counted as missed, never as fired.
"""

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from gleaner.chaos.fault_base import Count, Fault, Length, Seconds, Share, Where
from gleaner.chaos.machine_faults import (
    AnyMachineFault,
    BadEngine,
    BitRot,
    CloudTrouble,
    OperatorCommand,
    PowerLoss,
    SlowDisk,
    SlowTrainer,
)

Process = Literal[
    "agent", "rollout", "reward", "reward-planner", "reward-host", "gateway", "transfer", "trainer", "engine",
    "rank-1", "rank-2", "service",
]  # fmt: skip
"""A process of a host, by its kind (`gleaner.nodeagent.process_trees`). A `gateway` and a `reward-planner`
are there if the job's settings have one; a `service` is on the host `scores` then."""

Moment = Literal["received", "sent", "replied"]
ScorerFault = Literal["hang", "crash", "lie"]
Sickness = Literal["raise", "hang", "crash", "judge_away"]

FROZEN_DEAD_S = 10.0
"""A process that is silent for longer was declared dead by its peers (`liveness.dead_s` is 5 s, twice that is
safe)."""
FAIL_LOAD = "fail_load"
"""A kind that is not drawn alone, but as a part of an aim (`gleaner.chaos.fault_scenarios`)."""
FOREIGN_RESULT = "foreign_result"
"""The kind that is drawn only where there are two reward hosts."""
STAY = "stay"
"""The kind that is not drawn but cut out of availability traces: see `Stay`."""


class KillProcess(Fault, frozen=True, kw_only=True, tag="kill_process"):
    """SIGKILL to one process; its supervisor starts another."""

    host: Where
    process: Process


class CrashActor(Fault, frozen=True, kw_only=True, tag="crash_actor"):
    """A defect ends one actor of a process, at any point of its work; its supervisor starts it again.
    `actor`: the last part of its name (`manager`, `engine`)."""

    host: Where
    process: Process
    actor: Annotated[str, Meta(pattern=r"^[a-z]{1,40}$")]


class KillHost(Fault, frozen=True, kw_only=True, tag="kill_host"):
    """Power off: every process and the memory of a host are lost, its disk stays; then the host is started
    again at the same address. `back_s`: how long it is away; 0 leaves that to the provider of hosts."""

    host: Where
    back_s: Seconds = 0.0

    @property
    def over_s(self) -> float:
        return self.at_s + self.back_s


class KillZone(Fault, frozen=True, kw_only=True, tag="kill_zone"):
    """Every host of a zone at once, except the reserved ones and the head."""

    zone: str


class KillOnMessage(Fault, frozen=True, kw_only=True, tag="kill_on_message"):
    """SIGKILL to a process the moment that it has handled or sent the k-th message of a kind, counted from
    `at_s` on. `moment`: `received`, before it is handled; `sent`, as it leaves; `replied`, after what it
    handled was committed and before the reply to it is on the wire. `power_back_s` above 0: its whole host
    loses its power, and is up again so long after."""

    host: Where
    process: Process
    message: str
    count: Count = 1
    moment: Moment = "received"
    power_back_s: Seconds = 0.0


class KillInCommit(Fault, frozen=True, kw_only=True, tag="kill_in_commit"):
    """Power cut of a process in the middle of a commit of its journal: uncommitted data is lost, and with
    `torn` the last write is there in part."""

    host: Where
    process: Process
    torn: bool = False


class Freeze(Fault, frozen=True, kw_only=True, tag="freeze"):
    """SIGSTOP, then SIGCONT after `for_s`: a shorter time than any peer needs to declare it dead."""

    host: Where
    process: Process
    for_s: Length

    @property
    def over_s(self) -> float:
        return self.at_s + self.for_s


class Zombie(Fault, frozen=True, kw_only=True, tag="zombie"):
    """SIGSTOP until all peers have declared the process dead and replaced it, then SIGCONT: it continues with
    its old state and with the contents of its sockets."""

    host: Where
    process: Process
    for_s: Annotated[float, Meta(ge=FROZEN_DEAD_S, le=1e5)]

    @property
    def over_s(self) -> float:
        return self.at_s + self.for_s


class Hang(Fault, frozen=True, kw_only=True, tag="hang"):
    """SIGSTOP for good: the process neither ends nor continues, until its parent or service manager ends
    it."""

    host: Where
    process: Process


class Slow(Fault, frozen=True, kw_only=True, tag="slow"):
    """All that a process does takes `factor` times as long, for `for_s`."""

    host: Where
    process: Process
    factor: Annotated[float, Meta(gt=1, le=100)]
    for_s: Length

    @property
    def over_s(self) -> float:
        return self.at_s + self.for_s


class Partition(Fault, frozen=True, kw_only=True, tag="partition"):
    """Every packet from host `a` to host `b` is dropped silently, for `for_s`. `both`: and back."""

    a: Where
    b: Where
    both: bool = True
    for_s: Length

    @property
    def over_s(self) -> float:
        return self.at_s + self.for_s


class BadLink(Fault, frozen=True, kw_only=True, tag="bad_link"):
    """A bad network between two hosts, in both directions, for `for_s`: `loss` and `duplicate` are shares of
    messages, `delay_s` and `jitter_s` are added to each; much jitter reorders messages across connections
    (never inside one). `bytes_per_s`: rate of the link, 0 leaves it unchanged."""

    a: Where
    b: Where
    for_s: Length
    loss: Share = 0.0
    duplicate: Share = 0.0
    delay_s: Seconds = 0.0
    jitter_s: Seconds = 0.0
    bytes_per_s: Annotated[float, Meta(ge=0)] = 0.0

    @property
    def over_s(self) -> float:
        return self.at_s + self.for_s


class Reset(Fault, frozen=True, kw_only=True, tag="reset"):
    """Every connection between two hosts breaks at once, with a RST; new ones may be made."""

    a: Where
    b: Where


class Notice(Fault, frozen=True, kw_only=True, tag="notice"):
    """A preemption notice to a host; it is killed after `notice_s`, whatever its state."""

    host: Where
    notice_s: Seconds

    @property
    def over_s(self) -> float:
        return self.at_s + self.notice_s


class FalseNotice(Fault, frozen=True, kw_only=True, tag="false_notice"):
    """A cloud announces that a host goes away in `notice_s`, and withdraws the notice sooner, after `back_s`.
    `hint`: it announces that the host may go away."""

    host: Where
    notice_s: Seconds
    back_s: Length
    hint: bool = False

    @property
    def over_s(self) -> float:
        return self.at_s + self.back_s


class ClockJump(Fault, frozen=True, kw_only=True, tag="clock_jump"):
    """The wall clock of a host jumps by `by_s` (backwards, if negative). Monotonic time goes on."""

    host: Where
    by_s: Annotated[float, Meta(ge=-1e9, le=1e9)]


class DiskFull(Fault, frozen=True, kw_only=True, tag="disk_full"):
    """The disk of a host accepts no writes for `for_s`, or (`memory`) its shared memory: also that of a host
    that is off, when it is back."""

    host: Where
    for_s: Length
    memory: bool = False

    @property
    def over_s(self) -> float:
        return self.at_s + self.for_s


class CorruptChunk(Fault, frozen=True, kw_only=True, tag="corrupt_chunk"):
    """The next `count` chunks of weights that reach a host have a flipped bit."""

    host: Where
    count: Count = 1


class FailLoad(Fault, frozen=True, kw_only=True, tag=FAIL_LOAD):
    """The next `count` loads of newer weights into the engine of a host fail; it keeps its present weights.
    The count stays below the failed loads of one version after which the manager gives that version up, which
    would rightly end the job."""

    host: Where
    count: Count = 1


class BadScorer(Fault, frozen=True, kw_only=True, tag="bad_scorer"):
    """The next `count` answers of reward workers never arrive, arrive as the death of the worker, or are not
    verdicts."""

    how: ScorerFault
    count: Count = 1


class ForeignResult(Fault, frozen=True, kw_only=True, tag=FOREIGN_RESULT):
    """A reward host answers with the wrong item: it sends a result for each of the next `count` items that
    another reward host gets, with a score that no verifier gave."""

    host: Where
    count: Count = 1


class SickVerifier(Fault, frozen=True, kw_only=True, tag="sick_verifier"):
    """For `for_s` no reward worker returns a score: each raises, hangs or ends its process. New problems
    still arrive. `judge_away`, which no campaign draws: only the stage of a judge returns none."""

    how: Sickness
    for_s: Length

    @property
    def over_s(self) -> float:
        return self.at_s + self.for_s


class RestartStorm(Fault, frozen=True, kw_only=True, tag="restart_storm"):
    """One process is killed again and again, `kills` times, `every_s` apart: as soon as it is up."""

    host: Where
    process: Process
    kills: Annotated[int, Meta(ge=2, le=100)]
    every_s: Length

    @property
    def over_s(self) -> float:
        return self.at_s + self.kills * self.every_s


class Stay(Fault, frozen=True, kw_only=True, tag=STAY):
    """A preemptible host is on offer from `at_s` on, for `for_s`; with `notice_s` it gets a notice that long
    before its end, else it vanishes. An availability trace is a set of these; with a trace, preemptible hosts
    follow it alone. Its clock is the trace's, which begins with the first step."""

    host: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    for_s: Length
    notice_s: Seconds = 0.0

    @property
    def over_s(self) -> float:
        return self.at_s + self.for_s


AnyFault = (
    KillProcess | CrashActor | KillHost | KillZone | KillOnMessage | KillInCommit | SickVerifier | Freeze
    | Zombie | Hang | Slow | Partition | BadLink | Reset | Notice | FalseNotice | ClockJump | FailLoad
    | DiskFull | CorruptChunk | BadScorer | ForeignResult | RestartStorm | Stay | SlowDisk | PowerLoss
    | BitRot | CloudTrouble | OperatorCommand | BadEngine | SlowTrainer
)  # fmt: skip

KINDS: dict[str, type[Fault]] = {str(cls.__struct_config__.tag): cls for cls in get_args(AnyFault)}
"""Every fault by the name of its kind."""


MACHINE_KINDS = frozenset(str(cls.__struct_config__.tag) for cls in get_args(AnyMachineFault))
"""Kinds that are drawn only where a campaign names them, so that the schedules of others stay as they are."""


def kind_of(fault: Fault) -> str:
    """The name of its kind."""
    return str(type(fault).__struct_config__.tag)


def to_json(fault: Fault) -> str:
    """One fault on one line, with its kind."""
    return msgspec.json.encode(fault).decode()


def description(fault: Fault) -> str:
    """One line for people."""
    fields = {name: getattr(fault, name) for name in fault.__struct_fields__ if name != "at_s"}
    words = " ".join(f"{name}={value}" for name, value in fields.items() if value not in ("", 0.0, False))
    return f"at {fault.at_s:8.2f} s  {kind_of(fault):<16} {words}".rstrip()
