"""Actor runtime: mailboxes, tell and ask, supervision trees, registry, journal.

The names imported here are the whole public interface of this layer.
"""

from supervisor.actor import Actor, Suspected, Terminated, handles
from supervisor.address import Address, Incarnations
from supervisor.child_spec import (
    BRUTAL_KILL,
    INFINITY,
    ChildSpec,
    Intensity,
    TreeSpec,
    child,
    one_for_all,
    one_for_one,
    rest_for_one,
    simple_one_for_one,
)
from supervisor.context import Context
from supervisor.deadline import Deadline
from supervisor.delivery import Deferred
from supervisor.errors import (
    ActorError,
    AskFailed,
    AskTimeout,
    CannotGoOn,
    Cause,
    Crashed,
    Fenced,
    Hopeless,
    JournalAway,
    JournalDamaged,
    JournalError,
    JournalFull,
    JournalUnable,
    JournalUnreadable,
    Killed,
    NotAdmitted,
    Overloaded,
    Refused,
    RestartIntensityReached,
    StartFailed,
    SupervisorFailed,
    Suspended,
    Unreachable,
    WaitTimeout,
    WorkHung,
)
from supervisor.health import Health
from supervisor.journal import Journal, JournalStore
from supervisor.limits import Limits
from supervisor.lives import Restarted
from supervisor.mailbox import Lane
from supervisor.message import Done, Message
from supervisor.process import ProcessExit, ProcessSpec, die_with_parent
from supervisor.registry import Registry
from supervisor.sqlite_journal import SqliteJournal
from supervisor.supervision import Supervisor
from supervisor.system import ActorSystem
from supervisor.tree import Counts, Status
from supervisor.waiting import Waiting
from supervisor.work_deadlines import WorkDeadlines

__all__ = [
    "BRUTAL_KILL",
    "INFINITY",
    "Actor",
    "ActorError",
    "ActorSystem",
    "Address",
    "AskFailed",
    "AskTimeout",
    "CannotGoOn",
    "Cause",
    "ChildSpec",
    "Context",
    "Counts",
    "Crashed",
    "Deadline",
    "Deferred",
    "Done",
    "Fenced",
    "Health",
    "Hopeless",
    "Incarnations",
    "Intensity",
    "Journal",
    "JournalAway",
    "JournalDamaged",
    "JournalError",
    "JournalFull",
    "JournalStore",
    "JournalUnable",
    "JournalUnreadable",
    "Killed",
    "Lane",
    "Limits",
    "Message",
    "NotAdmitted",
    "Overloaded",
    "ProcessExit",
    "ProcessSpec",
    "Refused",
    "Registry",
    "RestartIntensityReached",
    "Restarted",
    "SqliteJournal",
    "StartFailed",
    "Status",
    "Supervisor",
    "SupervisorFailed",
    "Suspected",
    "Suspended",
    "Terminated",
    "TreeSpec",
    "Unreachable",
    "WaitTimeout",
    "Waiting",
    "WorkDeadlines",
    "WorkHung",
    "child",
    "die_with_parent",
    "handles",
    "one_for_all",
    "one_for_one",
    "rest_for_one",
    "simple_one_for_one",
]
