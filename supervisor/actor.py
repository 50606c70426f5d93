"""Actor: base class of user code, with typed handlers, reached only by messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gleaner.supervisor.mailbox import Lane
from gleaner.supervisor.message import Message

if TYPE_CHECKING:
    from gleaner.supervisor.context import Context
    from gleaner.supervisor.delivery import Deferred

M = TypeVar("M", bound=Message)
A = TypeVar("A", bound="Actor")
R = TypeVar("R", bound="Message | Deferred | None")
Handler = Callable[["Actor", Message], "Awaitable[Message | Deferred | None]"]
_MARK = "_handles"


class Terminated(msgspec.Struct, frozen=True, kw_only=True):
    """An incarnation that was watched or spawned has ended. `cause` describes how: `stopped`, `crashed: TYPE:
    TEXT` (`crashed: Fenced: …` of one that a newer incarnation replaced), `link down`, `silent for N s`, or
    `not alive` where it had ended before it was watched."""

    name: str
    incarnation: int
    cause: str


class Suspected(msgspec.Struct, frozen=True, kw_only=True):
    """The process of a watched incarnation is silent, or its link is broken (`suspected`), or it answers
    again. Not the end: that is `Terminated`."""

    name: str
    incarnation: int
    suspected: bool


def handles(
    kind: type[M], *, lane: Lane = Lane.USER
) -> Callable[[Callable[[A, M], Awaitable[R]]], Callable[[A, M], Awaitable[R]]]:
    """Mark a method as the handler of messages of `kind`, which arrive on `lane`."""

    def mark(method: Callable[[A, M], Awaitable[R]]) -> Callable[[A, M], Awaitable[R]]:
        setattr(method, _MARK, (kind, lane))
        return method

    return mark


class Actor:
    """An object with a mailbox. Handlers of one actor run one at a time, in the order of arrival within a
    lane.

    A handler's return value answers an ask; a `Deferred` answers it later. `Refused` raised by a handler
    answers the ask with an error and has no other effect. Any other exception ends this incarnation, and the
    supervisor decides what follows. An actor reaches the world only through `self.ctx`.
    """

    ctx: Context
    trap_exits = False
    """Whether the abnormal end of a linked actor calls `on_terminated` instead of ending this actor too."""
    _handlers: dict[type[Message], tuple[Handler, Lane]] = {}  # filled per class

    def __init_subclass__(cls) -> None:
        cls._handlers = dict(cls._handlers)
        for member in vars(cls).values():
            mark = getattr(member, _MARK, None)
            if mark is not None:
                kind, lane = mark
                cls._handlers[kind] = (member, lane)

    async def on_start(self) -> None:
        """Rebuild state (for example from the journal) before the first message."""

    async def on_stop(self) -> None:
        """An ordered stop; not called when the actor crashes or its process is killed."""

    async def on_terminated(self, event: Terminated) -> None:
        """A watched actor has ended."""

    async def on_suspected(self, event: Suspected) -> None:
        """A watched actor may be dead, or answers again; delivered only to actors that override this
        method."""

    def summary(self) -> dict[str, str | int | float]:
        """A few figures of the state for `rlctl ps`."""
        return {}

    @classmethod
    def handlers(cls) -> dict[type[Message], tuple[Handler, Lane]]:
        """The handler of each kind and its lane."""
        return cls._handlers
