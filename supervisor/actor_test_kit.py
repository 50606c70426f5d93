"""ActorTestKit: one actor under test, with its real runtime on virtual time.

Its mailbox, handlers, journal, timers and children are real. What it sends to actors that it did not spawn is
recorded, and the test answers its asks of them. Owns a loop of its own, so a test needs neither `async` nor
real time: an hour passes in a millisecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeVar

from gleaner.supervisor.actor import Actor
from gleaner.supervisor.address import Address, Incarnations
from gleaner.supervisor.cell import Cell
from gleaner.supervisor.delivery import Exit
from gleaner.supervisor.errors import ActorError, AskTimeout, Crashed
from gleaner.supervisor.journal.memory import MemoryJournal
from gleaner.supervisor.limits import Limits
from gleaner.supervisor.message import Message, decode_body, encode_body, kind_of
from gleaner.supervisor.network import Network
from gleaner.supervisor.outbound import Outbound
from gleaner.supervisor.system import ActorSystem
from gleaner.supervisor.system_ports import ProcessIdentity, SystemPorts
from gleaner.supervisor.virtual_time import VirtualLoop
from gleaner.transport.loopback import LoopbackNetwork

R = TypeVar("R", bound=Message)
M = TypeVar("M", bound=Message)
ACTOR = "actor"  # the name of the one on the stage


class ActorTestKit:
    """`with Stage(MyActor) as stage:` starts the actor; the end stops it.

    Args:
        factory: makes the actor, again after each `crash`.
        journal: its journal, for inspection or for a later stage.
        seed: of `ctx.rng`.
    """

    def __init__(
        self, factory: Callable[[], Actor], *, journal: MemoryJournal | None = None, seed: int = 0
    ) -> None:
        self.journal = journal or MemoryJournal()
        self.told: list[tuple[str, Message]] = []
        """The `tell` messages to other actors: the receiver's name and the message."""
        self.exits: list[Exit] = []
        """The ends of its lives."""
        self._factory = factory
        self._seed = seed
        self._answers: dict[type[Message], Callable[[Message], Message]] = {}
        self._loop = VirtualLoop()
        self._system: ActorSystem | None = None

    def __enter__(self) -> ActorTestKit:
        try:
            self._loop.run_until_complete(self._open())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run_until_complete(self._running.close())
        self._loop.close()

    @property
    def actor(self) -> Actor:
        """The living actor itself, for inspection."""
        actor = self._cell.actor
        assert actor is not None
        return actor

    @property
    def now_s(self) -> float:
        """Virtual time since the stage was made."""
        return self._loop.time()

    def ask(self, message: Message, expect: type[R], deadline_s: float = 5.0, key: str = "") -> R:
        """Ask the actor. Raises what an asker would get: Refused, Crashed, AskTimeout, ..."""
        return self._loop.run_until_complete(
            self._running.ask(self._cell.address, message, deadline_s=deadline_s, expect=expect, key=key)
        )

    def tell(self, message: Message) -> None:
        """Send a `tell` to the actor, and let the actor handle it."""
        self._loop.run_until_complete(self._told(message))

    def answer(self, kind: type[M], reply: Callable[[M], Message] | Message) -> None:
        """The answer of other actors when the actor asks `kind`: a message, or a function of the question
        that returns one or raises. An ask without such an answer is an AskTimeout at its deadline."""
        self._answers[kind] = reply if callable(reply) else lambda _: reply  # type: ignore[assignment]

    def advance(self, seconds: float) -> None:
        """Let time pass: timers fire, deadlines pass."""
        self._loop.run_until_complete(asyncio.sleep(seconds))

    def crash(self) -> None:
        """Kill the actor as a crash would, and start its next life over the same journal."""
        self._loop.run_until_complete(self._crash())

    # -- behind the curtain --

    @property
    def _running(self) -> ActorSystem:
        assert self._system is not None, "use the stage in a `with` block"
        return self._system

    @property
    def _cell(self) -> Cell:
        cell = self._running.cell(ACTOR)
        if cell is None:
            raise Crashed(f"{ACTOR} has ended: {self.exits[-1].cause if self.exits else 'never started'}")
        return cell

    async def _open(self) -> None:
        self._system = ActorSystem(
            ProcessIdentity("stage", "test", Incarnations(lambda: 0, self.journal.newest_incarnation)),
            SystemPorts(
                wire=LoopbackNetwork().wire("stage"),
                journals=self.journal,
                network=Network("127.0.0.1", None),
            ),
            seed=self._seed,
            limits=Limits(),
        )
        self._system.outbound = _Others(self._system, self.told, self._answers)
        self._system.start()
        await self._start()

    async def _start(self) -> None:
        await self._running.spawn(ACTOR, self._factory, self.exits.append).started

    async def _told(self, message: Message) -> None:
        await self._running.tell(self._cell.address, message)
        await asyncio.sleep(0.001)  # virtual: until it is idle, or waits for something

    async def _crash(self) -> None:
        self._cell.crash(RuntimeError("crashed by the test"))
        await self._start()


class _Others(Outbound):
    """All but the actor and its children: they accept every `tell`, and answer asks as the test has set."""

    def __init__(
        self,
        system: ActorSystem,
        told: list[tuple[str, Message]],
        answers: dict[type[Message], Callable[[Message], Message]],
    ) -> None:
        super().__init__(system)
        self._told = told
        self._answers = answers
        self._stage = system

    def _is_here(self, to: Address | str) -> bool:
        """Whether it means the actor or one that was spawned: a child that has ended is no stranger."""
        if isinstance(to, Address):
            return to.endpoint == self._stage.endpoint
        return self._stage.cell(to) is not None

    def tell(self, to: Address | str, message: Message, *, source: Cell | None = None) -> Awaitable[None]:
        if self._is_here(to):
            return super().tell(to, message, source=source)
        name = to if isinstance(to, str) else to.name
        self._told.append((name, _over_the_wire(message)))
        return asyncio.sleep(0)

    async def ask(
        self,
        to: Address | str,
        message: Message,
        *,
        deadline_s: float,
        expect: type[R],
        key: str = "",
        source: Cell | None = None,
    ) -> R:
        if self._is_here(to):
            return await super().ask(
                to, message, deadline_s=deadline_s, expect=expect, key=key, source=source
            )
        name = to if isinstance(to, str) else to.name
        answer = self._answers.get(type(message))
        if answer is None:
            await asyncio.sleep(deadline_s)
            raise AskTimeout(f"{kind_of(message)} to {name}: the stage has no answer for it")
        reply = _over_the_wire(answer(_over_the_wire(message)))
        await asyncio.sleep(0)
        if not isinstance(reply, expect):
            raise Crashed(f"{name} answered {kind_of(reply)}, expected {expect.__name__}")
        return reply


def _over_the_wire(message: M) -> M:
    """The message after encoding and decoding: one that cannot be encoded must not pass a test."""
    found = decode_body(kind_of(message), encode_body(message))
    if not isinstance(found, type(message)):
        raise ActorError(f"{kind_of(message)} did not survive its encoding")
    return found
