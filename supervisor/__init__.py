"""Actor runtime: mailboxes, `tell` and `ask`, supervision trees, registry, journal.

The names imported here are the whole public interface of this layer.
"""

from gleaner.supervisor.actor import Actor, Suspected, Terminated, handles
from gleaner.supervisor.address import Address, Incarnations
from gleaner.supervisor.child_lifecycle import Restarted
from gleaner.supervisor.child_spec import (
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
from gleaner.supervisor.context import Context
from gleaner.supervisor.deadline import Deadline
from gleaner.supervisor.delivery import Deferred
from gleaner.supervisor.errors import (
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
from gleaner.supervisor.journal.port import Journal, JournalStore
from gleaner.supervisor.journal.sqlite import SqliteJournal
from gleaner.supervisor.limits import Limits
from gleaner.supervisor.mailbox import Lane
from gleaner.supervisor.message import Done, Message
from gleaner.supervisor.names.registry import Registry
from gleaner.supervisor.process import ProcessExit, ProcessSpec, die_with_parent
from gleaner.supervisor.supervision import Supervisor
from gleaner.supervisor.system import ActorSystem
from gleaner.supervisor.system_ports import ProcessIdentity, SystemPorts
from gleaner.supervisor.tree import Counts, Status
from gleaner.supervisor.wait import Waiting
from gleaner.supervisor.watch.health import Health
from gleaner.supervisor.work_deadlines import WorkDeadlines

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
    "ProcessIdentity",
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
    "SystemPorts",
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
