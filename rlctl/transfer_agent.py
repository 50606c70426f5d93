"""Transfer agent of a trainer's host, with the location of its images.

Owns how a client finds the agent: by the hosts of the running job, and by the shared memory of the client's
machine. Nothing is written.
"""

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from gleaner.actors.cluster.job import store_dir
from gleaner.actors.names import SCHEDULER
from gleaner.actors.protocol.cluster import HostsUp, JobIs, JobSpec, JobStatus, WhoIsUp
from gleaner.actors.protocol.weights import FindStore, StoreIs
from gleaner.rlctl.client_waits import WAIT_S
from gleaner.supervisor import Address, AskFailed, Message, Refused

R = TypeVar("R", bound=Message)

ASK_S = 5.0
LOOK_S = 0.2


class CannotPublish(Exception):
    """Nothing was published, and instances serve the same version as before; the text gives the reason and
    the next step."""


class Asks(Protocol):
    """A client of the cluster."""

    async def ask(
        self, to: Address | str, message: Message, *, expect: type[R], deadline_s: float = 5.0, key: str = ""
    ) -> R: ...


@dataclass(frozen=True, slots=True)
class HostTransferAgent:
    """The agent of this host, the location of its images, and its config of the model. `join`: the agent that
    makes one version of the parts that ranks on several hosts publish."""

    node: str
    agent: str
    join: str
    store: Path
    model_config: bytes


async def find_home(cluster: Asks, host: str = "", wait_s: float = WAIT_S) -> HostTransferAgent:
    """The agent of this host: of the named one, else preferably of a reserved one. Raises CannotPublish where
    there is none after `wait_s`."""
    until_s = time.monotonic() + wait_s
    while True:
        try:
            return await _find_home(cluster, host)
        except (CannotPublish, AskFailed) as problem:
            if isinstance(problem, Refused):
                raise CannotPublish(str(problem)) from problem
            if time.monotonic() >= until_s:
                raise (
                    problem if isinstance(problem, CannotPublish) else CannotPublish(str(problem))
                ) from problem
        await asyncio.sleep(LOOK_S)


async def _find_home(cluster: Asks, host: str) -> HostTransferAgent:
    job = await cluster.ask(SCHEDULER, JobStatus(), expect=JobIs, deadline_s=ASK_S)
    if job.state != "running":
        raise CannotPublish('no job runs there: start one whose settings have training.backend = "own"')
    up = await cluster.ask(SCHEDULER, WhoIsUp(), expect=HostsUp, deadline_s=ASK_S)
    spec = JobSpec(run_id=job.run_id, run_dir="", model_dir="", config="")
    known = sorted(up.roles, key=lambda node: (up.roles[node] != "reserved", node))
    here = [node for node in known if host in ("", node) and store_dir(spec, node).is_dir()]
    if not here:
        raise CannotPublish(
            f"no node agent of job {job.run_id} keeps weights on this host{f' as {host}' if host else ''} "
            f"(its hosts: {', '.join(known) or 'none yet'}): start one here, `nodeagent start --role "
            "reserved`; a trainer in a container needs the host's /dev/shm"
        )
    agent = f"{here[0]}/transfer"
    found = await cluster.ask(agent, FindStore(), expect=StoreIs, deadline_s=ASK_S)
    store = Path(found.place).parent.parent  # a version is a folder in it
    if not os.access(store, os.R_OK | os.W_OK | os.X_OK):
        raise CannotPublish(f"{store} is another user's: run the trainer as the user of its node agent")
    join = next((node for node in known if up.roles[node] == "reserved"), here[0])
    return HostTransferAgent(here[0], agent, f"{join}/transfer", store, found.model_config)
