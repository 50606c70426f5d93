"""The actor runtime: mailboxes, tell and ask, supervision trees, registry, journal.

What others import from here is the whole public face of this floor.
"""

from supervisor.actor import Actor, Suspected, Terminated, handles
from supervisor.address import Address, Incarnations
from supervisor.context import Context
from supervisor.deadline import Deadline
from supervisor.delivery import Deferred
from supervisor.errors import (
    ActorError,
    AskFailed,
    AskTimeout,
    Crashed,
    Fenced,
    Hopeless,
    JournalDamaged,
    JournalError,
    JournalFull,
    Overloaded,
    Refused,
    RestartIntensityReached,
    Unreachable,
    WaitTimeout,
)
from supervisor.journal import Journal
from supervisor.limits import Limits
from supervisor.mailbox import Lane
from supervisor.message import Done, Message
from supervisor.process import ProcessExit, ProcessSpec, die_with_parent
from supervisor.registry import Registry
from supervisor.sqlite_journal import SqliteJournal
from supervisor.supervision import Restarted, Supervisor
from supervisor.system import ActorSystem
from supervisor.tree import ChildSpec, Intensity, TreeSpec, child, one_for_all, one_for_one, rest_for_one

__all__ = [
    "Actor",
    "ActorError",
    "ActorSystem",
    "Address",
    "AskFailed",
    "AskTimeout",
    "ChildSpec",
    "Context",
    "Crashed",
    "Deadline",
    "Deferred",
    "Done",
    "Fenced",
    "Hopeless",
    "Incarnations",
    "Intensity",
    "Journal",
    "JournalDamaged",
    "JournalError",
    "JournalFull",
    "Lane",
    "Limits",
    "Message",
    "Overloaded",
    "ProcessExit",
    "ProcessSpec",
    "Refused",
    "Registry",
    "RestartIntensityReached",
    "Restarted",
    "SqliteJournal",
    "Supervisor",
    "Suspected",
    "Terminated",
    "TreeSpec",
    "Unreachable",
    "WaitTimeout",
    "child",
    "die_with_parent",
    "handles",
    "one_for_all",
    "one_for_one",
    "rest_for_one",
]
