"""Error types of the actor runtime; each message has what, where and what to do."""

from dataclasses import dataclass


class ActorError(Exception):
    """Base of everything that the actor runtime raises."""


class UnknownKind(ActorError):
    """A message kind that this process does not define."""


class BadBody(ActorError):
    """A message body that does not decode into its type."""


class WaitTimeout(ActorError):
    """A wait of an actor passed its deadline; the message has the actor, what it waited for and on, and how
    long."""


class AskFailed(ActorError):
    """An ask that got no answer; its subclasses give the reason."""


class AskTimeout(AskFailed):
    """No reply by the deadline; the request may have taken effect."""


class Unreachable(AskFailed):
    """The peer is dead, gone or was replaced by a newer incarnation."""


class NotAdmitted(Unreachable):
    """The process of the receiver does not know our key."""


class Overloaded(AskFailed):
    """The receiver's mailbox is full; nothing was taken."""


class Refused(AskFailed):
    """The receiver understood and declined. Raised by a handler, it answers the ask and has no other
    effect."""


class Suspended(AskFailed):
    """The receiver takes no new work for now and gives the reason; the same ask may succeed later."""


class Crashed(AskFailed):
    """The receiver failed while it handled this message."""


class Fenced(ActorError):
    """A newer incarnation holds this name: every write of this one is refused."""


class JournalError(ActorError):
    """Base of journal errors; names the file."""


class Hopeless(ActorError):
    """The actor cannot go on, and its next life would fail in the same way: it is not restarted, its
    supervisor fails with this at once."""


class WorkHung(Hopeless):
    """Work on a thread of the process does not return. A restarted actor would still find the thread blocked;
    a restarted process does not."""


class JournalDamaged(JournalError, Hopeless):
    """The file is damaged past repair and was not read."""


class JournalUnreadable(JournalError, Hopeless):
    """Whole, but not for this program: a newer one wrote it, or no upgrade leads from there to here."""


class JournalUnable(JournalError):
    """The journal takes nothing for now, and may again later. Nothing of the failed write was accepted."""


class JournalFull(JournalUnable):
    """No space is left on the journal's disk; uncommitted writes were not accepted."""


class JournalAway(JournalUnable):
    """The journal's server does not answer. A commit under way may be stored or not; every acknowledged one
    is stored."""


class LinkedExit(ActorError):
    """An actor that this one was linked to ended abnormally; the message names it and the cause."""


class Killed(ActorError):
    """Ended at once by its supervisor (`brutal_kill`, or past the time of an ordered stop)."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One link of the chain of a failure: what ended, its kind and place, how it ended, and its parent."""

    who: str
    what: str
    how: str
    parent: str
    code: int | None = None
    """The exit code of a process that left one."""

    def __str__(self) -> str:
        return f"{self.who} ({self.what}, child of {self.parent}): {self.how}"


class SupervisorFailed(ActorError):
    """A supervisor gave up, and all its children ended with it.

    `causes` is the chain, from the supervisor's own child down to the one that failed first; `first` is the
    exception that it raised, None for a process.
    """

    def __init__(
        self, name: str, verdict: str, causes: tuple[Cause, ...] = (), first: Exception | None = None
    ) -> None:
        super().__init__("; because ".join([f"supervisor {name}: {verdict}", *map(str, causes)]))
        self.verdict = f"supervisor {name}: {verdict}"
        self.causes = causes
        self.first = first


class RestartIntensityReached(SupervisorFailed):
    """A supervisor's children failed more often than its intensity allows."""


class StartFailed(SupervisorFailed):
    """A child could not be started for the first time; those before it were stopped again."""


class CannotGoOn(SupervisorFailed, Hopeless):
    """A child reported that its next life would end as this one did."""
