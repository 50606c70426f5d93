"""ClusterView: registered names, and the state that every process reports.

Owns the questions to all processes at once, and the list of silent ones. A client of the cluster asks over
its own links (`gleaner.rlctl.client`). The head asks for a command on its host over its existing links
(`control_socket`).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gleaner.nodeagent.defaults import AGENT, DEADLINE_S, LOOK_S
from gleaner.supervisor import ActorSystem, Address, AskFailed, Message
from gleaner.supervisor.names.client import REGISTRY
from gleaner.supervisor.system_messages import SYSTEM, Inspect, ListNames, Names, SystemState
from gleaner.transport.wire import Peer

R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class ClusterReplies(Generic[R]):
    """`answers` of the processes that gave one; `silent`: actors of those that did not.

    A dead process is listed as silent until its lease expires; a stopped or stuck one stays listed.
    """

    answers: Sequence[R]
    silent: Sequence[str]


@dataclass(frozen=True, slots=True)
class Processes:
    """`states` of those that answered, the head's first; `silent`: see `ClusterReplies`, and child processes
    that their node agents run and that have not answered: their lease may have ended, or not begun."""

    states: Sequence[SystemState]
    silent: Sequence[str]


class ClusterView:
    """See the module. `heads`: the possible addresses of the head. Asks raise `AskTimeout`, `Unreachable`,
    `Overloaded` or `Refused`."""

    def __init__(self, system: ActorSystem, heads: Sequence[Peer]) -> None:
        self._system = system
        self._heads = list(heads)
        self.head = heads[0]  # the one that answered last

    async def ask(
        self,
        to: Address | str,
        message: Message,
        *,
        expect: type[R],
        deadline_s: float = DEADLINE_S,
        key: str = "",
    ) -> R:
        """Ask an actor. By name it survives the actor's restart; `key` makes it take effect once."""
        return await self._system.ask(to, message, deadline_s=deadline_s, expect=expect, key=key)

    async def names(self, prefix: str = "", deadline_s: float = DEADLINE_S) -> list[Address]:
        """Every registered actor whose name starts with `prefix`."""
        heads = [self.head, *(head for head in self._heads if head != self.head)]
        for head in heads:
            registry = Address(name=REGISTRY, endpoint=head.endpoint, public_key=head.public_key)
            try:
                names = await self.ask(
                    registry, ListNames(prefix=prefix), expect=Names, deadline_s=deadline_s / len(heads)
                )
            except AskFailed:
                if head is heads[-1]:
                    raise
            else:
                self.head = head
                return names.addresses
        raise AssertionError("a cluster has a head")

    async def processes(self, deadline_s: float = LOOK_S) -> Processes:
        """The state that every process of the cluster reports, all asked at once."""
        everywhere = await self.ask_everywhere(Inspect(), expect=SystemState, deadline_s=deadline_s)
        states = sorted(everywhere.answers, key=_order)
        return Processes(states, [*everywhere.silent, *_quiet_children(states, everywhere.silent)])

    async def peers(self, deadline_s: float = LOOK_S) -> dict[Peer, list[str]]:
        """Every process of the cluster, with the names of its registered actors."""
        names: dict[Peer, list[str]] = {self.head: []}
        for address in await self.names(deadline_s=deadline_s):
            names.setdefault(address.peer, []).append(address.name)
        return names

    async def ask_process(
        self, peer: Peer, question: Message, *, expect: type[R], deadline_s: float = LOOK_S
    ) -> R:
        """Send a question to the runtime of a process, not to one of its actors."""
        if peer.endpoint == self._system.wire.local.endpoint:  # there is no link to this process itself
            answer = self._system.inspection.answer(question)
            if isinstance(answer, expect):
                return answer
        system = Address(name=SYSTEM, endpoint=peer.endpoint, public_key=peer.public_key)
        return await self.ask(system, question, expect=expect, deadline_s=deadline_s)

    async def ask_everywhere(
        self, question: Message, *, expect: type[R], deadline_s: float = LOOK_S
    ) -> ClusterReplies[R]:
        """Send a question to the runtime of every process at once; processes that do not answer by the
        deadline are named."""

        async def one(peer: Peer) -> R | None:
            try:
                return await self.ask_process(peer, question, expect=expect, deadline_s=deadline_s)
            except AskFailed:
                return None

        peers = await self.peers(deadline_s)
        answers = await asyncio.gather(*map(one, peers))
        silent = [held for held, answer in zip(peers.values(), answers, strict=True) if answer is None]
        return ClusterReplies(
            [answer for answer in answers if answer is not None], [name for held in silent for name in held]
        )


def no_head(endpoint: str, problem: AskFailed) -> str:
    """Error text: the head does not answer, and what to do."""
    return (
        f"no head answers at {endpoint} ({problem}); check the address, and the keys: it ignores a process "
        "without a key that it trusts"
    )


def _quiet_children(states: Sequence[SystemState], silent: Sequence[str]) -> list[str]:
    answered = {(state.node, state.pid) for state in states}
    hosts = {(state.pid, state.node) for state in states if state.process == AGENT}
    return [
        f"{state.node}/{actor.name} (pid {actor.pid})"
        for state in states
        for actor in state.actors
        if actor.pid
        and (state.node, actor.pid) not in answered
        and (actor.pid, actor.name) not in hosts
        and not any(name.startswith((f"{state.node}/{actor.name}", f"{actor.name}/")) for name in silent)
    ]


def _order(state: SystemState) -> tuple[bool, str, bool, str]:
    return state.node != "head", state.node, state.process != AGENT, state.process
