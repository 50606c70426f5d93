"""Command lines that simulated hosts run, parsed by the production parsers.

Owns the table from a command line to what its process runs, and on which host. An unknown command cannot be
started, as on a machine without it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gleaner.nodeagent import __main__ as agent_command
from gleaner.nodeagent import process, process_arguments
from gleaner.nodeagent.exit_codes import CannotRun
from gleaner.nodeagent.host_services import HostServices
from gleaner.nodeagent.node import run_node
from gleaner.sim.hosts import Main, SimProcess

MakeSite = Callable[[SimProcess], HostServices]


@dataclass(frozen=True, slots=True)
class Command:
    """Meaning of a command line: the process's name (`node/kind`), its node, and what it runs."""

    name: str
    node: str
    main: Main

    @property
    def kind(self) -> str:
        """Kind of the process: `agent`, `rollout`, `trainer`, ..."""
        return self.name.partition("/")[2]


def command_of(argv: Sequence[str], env: Mapping[str, str], make_services: MakeSite) -> Command:
    """The command of `argv`. Raises OSError for an unknown or invalid one."""
    words = list(argv[argv.index("-m") + 1 :]) if "-m" in argv else []
    try:
        if words[:2] == ["gleaner.nodeagent", "start"]:
            return _agent(words[1:], make_services)
        if words[:1] == [process_arguments.MODULE]:
            return _child(words[1:], env, make_services)
    except (CannotRun, SystemExit) as problem:
        raise OSError(errno.EINVAL, f"{' '.join(argv)}: {problem}") from problem
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), " ".join(argv))


def _agent(words: Sequence[str], make_services: MakeSite) -> Command:
    options = agent_command.start_options(agent_command.parse(words))
    node = options.location.node

    async def main(process: SimProcess) -> int:
        return await run_node(options, process.stop_order, make_services(process))

    return Command(f"{node}/agent", node, main)


def _child(words: Sequence[str], env: Mapping[str, str], make_services: MakeSite) -> Command:
    order = process_arguments.parse(words, env)

    async def main(running: SimProcess) -> int:
        return await process.serve(order, running.stop_order, make_services(running))

    return Command(f"{order.location.node}/{order.kind}", order.location.node, main)
