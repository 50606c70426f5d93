"""What can go wrong between actors, as types. Every error says what happened, where, and what to do."""


class ActorError(Exception):
    """Base of everything that the actor runtime raises."""


class UnknownKind(ActorError):
    """A message kind that this process does not define."""


class BadBody(ActorError):
    """A message body that does not decode into its type."""


class WaitTimeout(ActorError):
    """What an actor waited for did not come by its deadline; says who waited, for what, on whom, how long."""


class AskFailed(ActorError):
    """An ask that got no answer; its subclasses say why."""


class AskTimeout(AskFailed):
    """No reply by the deadline; the request may have taken effect."""


class Unreachable(AskFailed):
    """The peer is dead, gone or was replaced by a newer incarnation."""


class Overloaded(AskFailed):
    """The receiver's mailbox is full; nothing was taken."""


class Refused(AskFailed):
    """The receiver understood and declined. Raised by a handler, it answers the ask and harms nobody."""


class Crashed(AskFailed):
    """The receiver failed while it handled this message."""


class Fenced(ActorError):
    """A newer incarnation holds this name: whatever this one writes is refused."""


class JournalError(ActorError):
    """Base of what a journal raises; names the file."""


class Hopeless(ActorError):
    """The actor cannot go on, and the next life would only find the same: it is not restarted, its supervisor
    fails with this at once."""


class JournalDamaged(JournalError, Hopeless):
    """The file is damaged past repair and was not read."""


class JournalFull(JournalError):
    """No space is left where the journal lives; what was not committed was not accepted."""


class RestartIntensityReached(ActorError):
    """A supervisor gave up: its children failed more often than its intensity allows."""
