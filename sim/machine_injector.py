"""MachineInjector: faults of disks, clouds, engines and trainers, and commands of operators.

A call returns whether the fault could be injected, as those of `fault_injector` do. Decides nothing: the
caller chooses which fault begins when, and when it is over.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from gleaner.actors.cluster import job as places
from gleaner.actors.names import MANAGER, SCHEDULER
from gleaner.actors.protocol.cluster import CloudNotice, KillChild, PreemptionNotice, StopNode, SubmitJob
from gleaner.actors.protocol.rollout import PublishVersion, Weights
from gleaner.actors.training.records import Step
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.files import SimFiles
from gleaner.sim.run_setup import CLIENT, SPARE
from gleaner.supervisor import AskFailed, Message, Refused

ASK_S = 5.0  # for an actor to answer a command
TRIES = 4  # an operator repeats a command that got no answer
PAUSE_S = 1.0
LOOK_S = 0.5  # between two looks for a file that is to rot
NO_ROOT = bytes(32)


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a command of an operator: None for a refusal."""

    command: str
    message: Message
    answer: Message | None
    refusal: str


class MachineInjector:
    """See the module.

    Args:
        cluster: the one to break. hosts: its hosts.
        rng: its own stream of randomness.
        on_answer: called with each answer to a command.
        before_rot: called with the host before a file on it rots.
    """

    def __init__(
        self,
        cluster: SimCluster,
        hosts: FaultInjector,
        rng: random.Random,
        on_answer: Callable[[Answered], None] = lambda answered: None,
        before_rot: Callable[[str], None] = lambda host: None,
    ) -> None:
        self._cluster, self._hosts, self._rng, self._on_answer = cluster, hosts, rng, on_answer
        self._before_rot = before_rot

    # -- disks --

    def slow_disk(self, host: str, factor: float, bytes_per_s: float, for_s: float) -> bool:
        """Each access takes `factor` times as long for so long, and writes have this rate; 0: the usual."""
        found = self._cluster.hosts.get(host)
        if found is None:
            return False
        found.disk.slow(factor, for_s, bytes_per_s=bytes_per_s or math.inf)
        return True

    def stall_disk(self, host: str, for_s: float) -> bool:
        """The disk does nothing for so long."""
        found = self._cluster.hosts.get(host)
        if found is None:
            return False
        found.disk.stall(for_s)
        return True

    def track_unsure_writes(self) -> None:
        """Before the run: know on each disk which writes a power loss may take back."""
        for host in self._cluster.hosts.values():
            host.disk.track_unsure()

    def lose_power(self, host: str, back_s: float, *, false_syncs: bool) -> bool:
        """The host loses its power, and what its disk had not stored; it is up again `back_s` later."""
        if not self._hosts.kill_host(host):
            return False
        self._cluster.hosts[host].disk.lose_power(self._rng, false_syncs=false_syncs)
        self._cluster.loop.call_later(back_s, self._hosts.start_host, host)
        return True

    def rot(self, host: str, what: str, back_s: float, done: Callable[[], None]) -> bool:
        """A bit of a file at rest flips, as soon as there is such a file: `done` is called then. Of a durable
        checkpoint only where an earlier one is left, and not of the last step: nothing is trained after it.
        The processes that have loaded an image die, so that it is read again, and in half of the cases the
        agent that serves it."""
        if host not in self._cluster.hosts:
            return False
        self._rot_once_there(host, what, back_s, done)
        return True

    def _rot_once_there(self, host: str, what: str, back_s: float, done: Callable[[], None]) -> None:
        if self._cluster.ended is not None:
            return
        if self._rotted(host, what, back_s):
            done()
            return
        self._cluster.loop.call_later(LOOK_S, self._rot_once_there, host, what, back_s, done)

    def _rotted(self, host: str, what: str, back_s: float) -> bool:
        found, job = self._cluster.hosts[host], self._cluster.job
        if not found.up:
            return False
        if what == "checkpoint":
            files, folder, least = found.disk.files, str(places.checkpoint_dir(job)), 2
        elif what == "copy":
            files, folder, least = found.memory, str(places.state_copy_dir(job, host)), 1
        else:
            files, folder, least = found.memory, str(places.store_dir(job, host)), 1
        path = _newest(files, folder, least)
        if not path or path.startswith(f"{folder}/step-{self._cluster.setting.config.job.steps:06d}/"):
            return False
        self._before_rot(host)
        files.corrupt(path, self._rng.randrange(len(files.read(path))))
        self._cluster.loop.trace.note("bit rot", host, path)
        if what == "image":
            agent = ("transfer",) if self._rng.random() < 0.5 else ()
            for kind in (*agent, "engine", "trainer"):
                self._hosts.kill_process(host, kind)
        if back_s and self._hosts.kill_host(host):
            self._cluster.loop.call_later(back_s, self._hosts.start_host, host)
        return True

    # -- the cloud --

    def refuse_hosts(self, *, refuse: bool) -> bool:
        """The cloud refuses each request for a host, or grants them again."""
        self._cluster.cloud.refuses = refuse
        return True

    def delay_hosts(self, late_s: float) -> bool:
        """Each host that is requested has power so much later; 0 is the usual time."""
        self._cluster.cloud.late_s = late_s
        return True

    def deliver_host(self) -> bool:
        """The cloud delivers a host that was not requested."""
        spares = [name for name in self._cluster.hosts if name.startswith(f"{SPARE}-")]
        return any(self._cluster.cloud.deliver(name) for name in spares[:1])

    # -- engines and trainers --

    def bad_engine(self, host: str, how: str, count: int, done: Callable[[], None]) -> bool:
        """The next `count` turns with rows on a host are garbage: `done` for each."""
        found = self._cluster.hosts.get(host)
        if found is None or not found.up:
            return False
        for _ in range(count):
            self._cluster.machine_faults.engines.order(host, how, done)
        return True

    def slow_trainer(self, factor: float, for_s: float) -> bool:
        """The trainer's work takes `factor` times as long for so long."""
        self._cluster.machine_faults.trainer.begin(factor, for_s)
        return True

    # -- operators --

    def command(self, what: str, host: str, notice_s: float) -> bool:
        """An operator sends a command, again and again until it is answered."""
        if what in ("preempt", "drain", "stop", "kill"):
            messages: dict[str, Message] = {
                "preempt": PreemptionNotice(deadline_s=notice_s),
                "drain": CloudNotice(kind="hint"),
                "stop": StopNode(),
                "kill": KillChild(child="engine"),
            }
            if host not in self._hosts.hosts("preemptible"):
                return False
            engine = self._hosts.process(host, "engine")
            if what == "kill" and engine is not None:
                engine.struck = True
            self._send(what, f"{host}/agent", messages[what])
            if what == "drain":
                back = CloudNotice(kind="none")
                self._cluster.loop.call_later(notice_s, self._send, "undrain", f"{host}/agent", back)
            return True
        if not self._goes_on():
            return False
        job = self._cluster.job
        other = msgspec.structs.replace(job, run_id=f"{job.run_id}-other")
        unknown = Weights(version=0, root=NO_ROOT, sources=(f"{host}/transfer",))
        to, message = {
            "resubmit": (SCHEDULER, SubmitJob(job=job)),
            "submit_other": (SCHEDULER, SubmitJob(job=other)),
            "publish": (MANAGER, PublishVersion(weights=unknown, ascending=True)),
        }[what]
        self._send(what, to, message)
        return True

    def _goes_on(self) -> bool:
        """The job was taken, and is not about to end."""
        steps = sum(isinstance(record, Step) for record in self._cluster.history)
        begun = bool(self._cluster.history) and self._cluster.client is not None
        return begun and steps < self._cluster.setting.config.job.steps - 1

    def _send(self, what: str, to: str, message: Message) -> None:
        client = self._cluster.client
        if client is None or self._cluster.ended is not None:
            return

        async def send() -> None:
            for _ in range(TRIES):
                try:
                    answer = await client.ask(to, message, deadline_s=ASK_S, expect=Message)
                except Refused as refusal:
                    self._answered(Answered(what, message, None, str(refusal)))
                    return
                except AskFailed:
                    await asyncio.sleep(PAUSE_S)
                else:
                    self._answered(Answered(what, message, answer, ""))
                    return

        process = self._cluster.hosts[CLIENT].processes[0]
        process.loop.create_task(send(), name=f"{what} to {to}")

    def _answered(self, answered: Answered) -> None:
        shown = answered.refusal or str(answered.answer)
        self._cluster.loop.trace.note("operator", answered.command, shown)
        if self._cluster.ended is None:
            self._on_answer(answered)


def _newest(files: SimFiles, folder: str, least: int) -> str:
    """A file of the newest entry of the folder, "" where it has fewer than `least` entries."""
    paths: Sequence[str] = [path for path in files.under(folder) if not path.endswith((".draft", ".note"))]
    entries = sorted({path.removeprefix(folder).split("/")[1] for path in paths})
    if len(entries) < least:
        return ""
    newest = [path for path in paths if path.removeprefix(folder).split("/")[1] == entries[-1]]
    return newest[0]
