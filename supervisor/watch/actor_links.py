"""ActorLinks: links between actors, as Erlang's; an abnormal end ends the other too.

The other actor ends with the same cause. Owns the links of this process's actors. A link is two watches, one
in each direction, so that it holds across processes and their deaths; an ordered stop does not spread. An
actor whose class sets `trap_exits` gets `on_terminated` instead of its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gleaner.supervisor.address import Address
from gleaner.supervisor.errors import LinkedExit
from gleaner.supervisor.system_messages import LinkActors

if TYPE_CHECKING:
    from gleaner.supervisor.cell import Cell
    from gleaner.supervisor.system import ActorSystem

_Life = tuple[str, int]  # name, incarnation

STOPPED = "stopped"  # the cause of an ordered stop, as in `Exit.cause`


class ActorLinks:
    """The links of one actor system's actors."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        # By the life of an actor of this process: the lives that it is linked to; False where the link was
        # undone and the end of the watch behind it has not arrived yet. Removed with the actor.
        self._links: dict[_Life, dict[_Life, bool]] = {}

    def link(self, cell: Cell, other: Address) -> None:
        """See `Context.link`."""
        if not self._hold(cell, other):
            return
        local = self._system.local(other)
        if local is not None:
            self._hold(local, cell.address)
        elif other.endpoint != self._system.endpoint:
            self._tell(other, cell, linked=True)

    def unlink(self, cell: Cell, other: Address) -> None:
        """See `Context.unlink`."""
        self._undo(cell, _life(other))
        local = self._system.local(other)
        if local is not None:
            self._undo(local, _life(cell.address))
        elif other.endpoint != self._system.endpoint:
            self._tell(other, cell, linked=False)

    def asked(self, message: LinkActors) -> None:
        """An actor of another process links itself to one of this process, or undoes that. Where that one has
        ended, the watch from there reports it."""
        cell = self._system.cell(message.name)
        if cell is None or cell.address.incarnation != message.incarnation:
            return
        if message.linked:
            self._hold(cell, message.source)
        else:
            self._undo(cell, _life(message.source))

    def ended(self, cell: Cell, life: _Life, cause: str) -> bool:
        """A watched life has ended; True if `cell` gets no event for it (its link may end `cell` instead)."""
        links = self._links.get(_life(cell.address))
        linked = links.pop(life, None) if links else None
        if linked is None:
            return False
        if not linked:
            return True
        if cell.actor is not None and type(cell.actor).trap_exits:
            return False
        if cause != STOPPED:
            cell.crash(LinkedExit(f"linked to {life[0]}#{life[1]}: {cause}"))
        return True

    def count(self) -> int:
        """Directions of links that are held."""
        return sum(sum(links.values()) for links in self._links.values())

    def forget(self, name: str, incarnation: int) -> None:
        """This life of this process is over."""
        self._links.pop((name, incarnation), None)

    def _hold(self, cell: Cell, other: Address) -> bool:
        """Store one direction; False if it is stored already."""
        links = self._links.setdefault(_life(cell.address), {})
        known = links.get(_life(other))
        links[_life(other)] = True
        if known is None:
            self._system.watch(other, cell)
        return known is not True

    def _undo(self, cell: Cell, life: _Life) -> None:
        links = self._links.get(_life(cell.address), {})
        if life in links:
            links[life] = False

    def _tell(self, to: Address, cell: Cell, *, linked: bool) -> None:
        message = LinkActors(source=cell.address, name=to.name, incarnation=to.incarnation, linked=linked)
        self._system.send_system(to.peer, message)


def _life(address: Address) -> _Life:
    return (address.name, address.incarnation)
