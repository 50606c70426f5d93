"""Client of a simulated cluster: submits the job, asks its state, gives notices.

Owns an actor system without actors, as `rlctl` has one. It is as patient as a user: while the scheduler does
not answer it asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gleaner.actors.names import SCHEDULER
from gleaner.actors.protocol.cluster import JobIs, JobSpec, JobStatus, SubmitJob
from gleaner.nodeagent.host_services import Sockets
from gleaner.sim.hosts import SimProcess
from gleaner.supervisor import ActorSystem, AskFailed, Incarnations, Message, ProcessIdentity, SystemPorts
from gleaner.supervisor.journal.memory import MemoryJournal
from gleaner.supervisor.machine import Machine
from gleaner.transport.wire import Peer

SUBMIT_S = 60.0  # the scheduler starts the fleet before it answers
STATUS_S = 5.0
STATUS_PERIOD_S = (0.5, 10.0)
STATUS_SHARE = 0.01  # of the time that the job has taken: in a run of minutes it asks every few seconds
AGAIN_S = 1.0


@asynccontextmanager
async def open_client(
    process: SimProcess, sockets: Sockets, head: Peer, machine: Machine
) -> AsyncIterator[ActorSystem]:
    """The actor system of a client, receiving, named as its process is. Nothing is sent before the first
    question."""
    loop, host = process.host.loop, process.host.name
    system = ActorSystem(
        ProcessIdentity(process.host.name, process.kind, Incarnations(lambda: loop.wall_ms(host))),
        SystemPorts(wire=sockets.wire, journals=MemoryJournal(), network=sockets.network, machine=machine),
        registry=head,
    )
    system.start()
    try:
        yield system
    finally:
        await system.close()


async def job_done(system: ActorSystem, job: JobSpec) -> JobIs:
    """Submit the job, until it is taken, and wait for its end, as long as that takes."""
    state = JobIs(state="none")
    while state.run_id != job.run_id:
        try:
            state = await system.ask(SCHEDULER, SubmitJob(job=job), deadline_s=SUBMIT_S, expect=JobIs)
        except AskFailed:
            await asyncio.sleep(AGAIN_S)
    now = asyncio.get_running_loop().time
    taken_s = now()
    while state.state == "running":
        least_s, most_s = STATUS_PERIOD_S
        await asyncio.sleep(min(max(least_s, (now() - taken_s) * STATUS_SHARE), most_s))
        try:
            state = await system.ask(SCHEDULER, JobStatus(), deadline_s=STATUS_S, expect=JobIs)
        except AskFailed:
            continue
    return state


async def say(system: ActorSystem, to: str, message: Message, within_s: float) -> None:
    """Send a message to an actor once, best effort: an actor that does not answer in time has not received
    it."""
    try:
        await system.ask(to, message, deadline_s=within_s, expect=Message)
    except AskFailed:
        return
