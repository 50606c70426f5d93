"""StorageOutageProxy: replaces an actor whose journal takes nothing, until writes work again.

A journal takes nothing, for example, on a full disk or while its server is away. The stand-in holds the
actor's name and refuses every ask with the reason (`Suspended`), so that nothing is accepted which could be
lost. What the actor had accepted is in its journal. `supervisor.managed_child.RunningActor` checks whether
the journal takes writes again and then starts the actor anew. This uses up no restart and does not spin.
"""

from typing import Any

from gleaner.supervisor.actor import Actor, Handler, Suspected, Terminated
from gleaner.supervisor.errors import Suspended
from gleaner.supervisor.mailbox import Lane
from gleaner.supervisor.message import Message

SUSPENDED_LATE_S = 60.0  # a suspension of so long is an event, again each time
LOOK_S = 1.0
"""Between two looks at the journal; each is one small write."""


class StorageOutageProxy(Actor):
    """See the module. `reason`: the journal's error text."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    async def refuse(self, message: Message) -> None:
        """Refuse any message. An end that the actor watched is reported again when the actor watches anew."""
        if not isinstance(message, Terminated | Suspected):
            raise Suspended(f"{self.ctx.name} takes nothing for now: {self.reason}")

    def summary(self) -> dict[str, str | int | float]:
        return {"suspended": self.reason}

    @classmethod
    def handlers(cls) -> dict[type[Message], tuple[Handler, Lane]]:
        """One for every kind."""
        return _Everything()


class _Everything(dict[type[Message], tuple[Handler, Lane]]):
    def get(self, _kind: type[Message], _default: Any = None) -> tuple[Handler, Lane]:
        return StorageOutageProxy.refuse, Lane.USER  # type: ignore[return-value]
