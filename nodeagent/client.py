"""Client of a node agent for commands: find it by its state directory, ask, leave.

Owns a process's short life as a caller without actors of its own.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from gleaner.nodeagent.files import AgentFile
from gleaner.nodeagent.host import LOOPBACK, load_keys
from gleaner.nodeagent.wall_clock import wall_ms
from gleaner.supervisor import (
    ActorSystem,
    Address,
    Incarnations,
    Message,
    ProcessIdentity,
    SqliteJournal,
    SystemPorts,
)
from gleaner.supervisor.network import Network
from gleaner.supervisor.system_messages import SYSTEM, Inspect, SystemState
from gleaner.transport.mesh import ZmqWire

R = TypeVar("R", bound=Message)
NO_FILE = Path(":memory:")  # SQLite's name for a database that is no file: a caller keeps no journal


@asynccontextmanager
async def calling(agent: AgentFile) -> AsyncIterator[ActorSystem]:
    """An actor system for asking the processes that `agent` can reach. Raises BadKeys."""
    keys = load_keys(Path(agent.keys) if agent.keys else None)
    incarnations = Incarnations(wall_ms)
    wire = ZmqWire("caller", incarnations.mint(), LOOPBACK, keys)
    system = ActorSystem(
        ProcessIdentity("caller", f"caller-{os.getpid()}", incarnations),
        SystemPorts(wire=wire, journals=SqliteJournal(NO_FILE), network=Network("127.0.0.1", keys)),
    )
    system.start()
    try:
        yield system
    finally:
        await system.close()


def agent_address(agent: AgentFile) -> Address:
    """The NodeAgent actor, whichever incarnation."""
    return Address(name=f"{agent.node}/agent", endpoint=agent.endpoint, public_key=agent.public_key)


async def inspect(agent: AgentFile, deadline_s: float) -> SystemState:
    """The reported state of the node agent's process. Raises AskTimeout, Unreachable."""
    address = Address(name=SYSTEM, endpoint=agent.endpoint, public_key=agent.public_key)
    async with calling(agent) as system:
        return await system.ask(address, Inspect(), deadline_s=deadline_s, expect=SystemState)


async def tell_agent(agent: AgentFile, message: Message, expect: type[R], deadline_s: float) -> R:
    """Ask the node agent. Raises AskTimeout, Unreachable, Refused."""
    async with calling(agent) as system:
        return await system.ask(agent_address(agent), message, deadline_s=deadline_s, expect=expect)
