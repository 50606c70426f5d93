"""Observer of a simulated cluster: turns its events into facts.

The facts are messages, commits, acknowledgements, waits, sizes and served bytes. Owns the hooks into the
simulation and the polling period. Judges nothing; it feeds the jury and the count of recoveries. It acts the
same in every run, so one seed is still one history.
"""

import asyncio
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import xxhash

from gleaner.actors.cluster import job as places
from gleaner.actors.protocol.cluster import NodeSeen, SaveState
from gleaner.actors.protocol.instances import Serving
from gleaner.actors.protocol.weights import Fetched, Published
from gleaner.actors.reward.pipe import ScoreItem
from gleaner.chaos.deliveries import Session
from gleaner.chaos.faults import AnyFault
from gleaner.chaos.frozen_processes import HEAD, FrozenProcesses
from gleaner.chaos.invariants.catalogue import Jury
from gleaner.chaos.invariants.facts import (
    CommandAnswered,
    Committed,
    Fact,
    Failed,
    FrameDelivered,
    FramesAcknowledged,
    LateWait,
    Measured,
    MessagePassed,
    RecordWritten,
    RequestAnswered,
    ServedImage,
    VerifierAnswered,
)
from gleaner.chaos.invariants.gateway_facts import CallOver
from gleaner.chaos.invariants.world_facts import ExpiredSeen
from gleaner.chaos.recoveries import Recoveries
from gleaner.chaos.truth_sim import SimTruth
from gleaner.nodeagent.exit_codes import GAVE_UP
from gleaner.sim.cluster import SimCluster
from gleaner.sim.file_mapping import FileMapping
from gleaner.sim.hosts import Host, SimProcess
from gleaner.sim.machine_injector import Answered
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.models.clock import Immediate
from gleaner.sim.models.saved_memory import SimCopies
from gleaner.sim.outcome import saved_steps
from gleaner.supervisor import ActorSystem
from gleaner.supervisor.journal.group_commit import Write
from gleaner.supervisor.mailbox import SYSTEM_LIMIT
from gleaner.supervisor.message import decode_body
from gleaner.supervisor.system_messages import WaitState
from gleaner.transport.control_frame import Data
from gleaner.transport.link_end import LinkEnd
from gleaner.transport.stream_receiver import StreamReceiver

LOOK_S = 1.0
"""Between two polls of waits and sizes."""
LOOKS_A_READ = 4
"""Polls between two readings of all figures of a process, which only grow; a death has one of its own."""
WAITS = 8
"""Oldest waits reported for a job that makes no progress."""
LATE_S = 3.0
"""A wait may pass its deadline by so much before it is silent: its owner sweeps once a beat, and a loop that
is held up sweeps later."""
TOLD_OF = (
    "rollout/manager", "rollout/manager/ledger", "training/state", "training/controller", "registry",
    "cluster/scheduler", "cluster/scheduler/members",
)  # fmt: skip
"""Streams whose messages the checks read; of the others they need only the writer."""

FOLLOWED = frozenset((NodeSeen, Published, Serving, Fetched, SaveState))
"""Messages of which the observer reads more than that they passed."""


class Observer:
    """See the module."""

    def __init__(
        self, cluster: SimCluster, jury: Jury, truth: SimTruth, faults: Sequence[AnyFault] = ()
    ) -> None:
        self.recoveries = Recoveries()
        self._standstills = FrozenProcesses(cluster, jury.see, faults)
        self.waits: list[str] = []
        """The oldest waits at the end."""
        self._cluster = cluster
        self._jury = jury
        self._truth = truth
        self._late: dict[tuple[str, str, str, str, float], float] = {}  # since when a wait is late
        self._reported: set[tuple[str, str, str, str, float]] = set()
        self._frozen_s: dict[SimProcess, float] = {}
        self._known: set[SimProcess] = set()
        self._published: dict[tuple[int, bytes], bytes] = {}
        self._whole: dict[SimProcess, int] = {}  # newest state on the host of a process before a file rotted
        self._findings = 0
        self._looks = 0

    def begin(self) -> None:
        """Start observing."""
        self._cluster.watch(self._seen)
        self._cluster.cloud.on_withdrawn = self.recoveries.withdrawn
        self._cluster.scorer_faults.on_score = self._scored
        for host in self._cluster.hosts.values():
            host.disk.on_commit = partial(self._commit, host)
        self._cluster.loop.call_later(LOOK_S, self._look_again)

    def end(self) -> None:
        """The run is over, and all its processes still exist."""
        asyncio._set_running_loop(self._cluster.loop.world)
        try:
            self._looks = -1  # with all figures
            self._look()
            self.waits = self._oldest_waits(WAITS)
        finally:
            asyncio._set_running_loop(None)
        for host in self._cluster.hosts.values():
            self.recoveries.disks(host.disk.counts)
        self.recoveries.watchdogs(self._standstills.watchdogs)

    def _oldest_waits(self, count: int) -> list[str]:
        """Waits of all living processes, in readable form."""
        found: list[tuple[float, str]] = []
        for process, system in self._cluster.systems.items():
            for wait in system.waits.snapshot(count):
                text = f"{wait.who} in {process.name} waits {wait.since_s:.0f} s for {wait.what} on {wait.on}"
                found.append((-wait.since_s, text))
        return [text for _, text in sorted(found)[:count]]

    # -- messages and commits --

    def _seen(self, seen: ObservedMessage) -> None:
        process = seen.process
        self._meet(process)
        fact = MessagePassed(
            self._now_s, process.name, seen.direction, seen.mode, seen.source, seen.to, seen.message
        )
        self.recoveries.message_passed(fact)
        self._jury.see(fact)
        message = seen.message
        if type(message) not in FOLLOWED:  # as most
            return
        if isinstance(message, NodeSeen) and message.event == "killed" and process.name == HEAD:
            if seen.direction != "in":
                self._standstills.declared_dead(message.node)
        elif isinstance(message, Published) and seen.direction != "in":
            self._note_published(process.host, message)
        elif isinstance(message, Serving | Fetched) and seen.direction == "out":
            self._look_at_image(process.host, message)
        elif isinstance(message, SaveState) and message.trained is not None and seen.direction == "out":
            # a trainer that has sealed its state is right to record it, though the state rots meanwhile
            newest = max(self._newest_state(process.host), self._whole.get(process, -1))
            self._jury.see(RecordWritten(self._now_s, process.host.name, message.trained.step, newest))

    def _commit(self, host: Host, write: Write) -> None:
        watched = write.stream in TOLD_OF
        messages = tuple(decode_body(row.kind, row.body) for row in write.rows) if watched else ()
        fact = Committed(self._now_s, host.name, write.stream, write.incarnation, messages, write.is_snapshot)
        self.recoveries.committed(fact)
        self._jury.see(fact)

    def _scored(self, item: ScoreItem) -> None:
        tokens = array("I", item.tokens).tobytes()
        self._jury.see(VerifierAnswered(self._now_s, item.split, item.index, tokens))

    def called(self, fact: Fact) -> None:
        """Asks and answers of a program outside of the cluster, until the job is over."""
        if self._cluster.ended is None:
            if isinstance(fact, RequestAnswered):
                self.recoveries.answered(fact)
            elif isinstance(fact, CallOver):
                self.recoveries.called(fact)
            self._jury.see(fact)

    def commanded(self, answered: Answered) -> None:
        """An answer to an operator, while the job goes on."""
        self._jury.see(
            CommandAnswered(
                self._now_s, answered.command, answered.message, answered.answer, answered.refusal
            )
        )

    def rots(self, host: str) -> None:
        """A file on this host is about to rot: the states there are whole for the last time."""
        if host in self._cluster.hosts:
            found = self._cluster.hosts[host]
            newest = self._newest_state(found)
            for process in found.processes:
                self._whole[process] = max(newest, self._whole.get(process, -1))

    def acknowledged(self, stream: str, incarnation: int, seq: int) -> None:
        """See `acknowledgements`."""
        self._jury.see(FramesAcknowledged(self._now_s, stream, incarnation, seq))

    def handed_up(self, session: Session, end: LinkEnd, frame: Data, numbers: Sequence[int]) -> None:
        """See `deliveries`."""
        link = end.peer.endpoint if end.peer is not None else end.route.decode(errors="replace")
        count = len(frame.envelopes)
        self._jury.see(FrameDelivered(self._now_s, link, session, frame.first, count, numbers))

    # -- polls --

    def _look_again(self) -> None:
        self._look()
        self._cluster.loop.call_later(LOOK_S, self._look_again)

    def _look(self) -> None:
        self._standstills.look()
        self._looks += 1
        for process, system in list(self._cluster.systems.items()):
            self._meet(process)
            self._look_at(process, system)
        for finding in self._cluster.loop.findings[self._findings :]:
            self._jury.see(Failed(finding.at_s, finding.process, f"{finding.what}: {finding.problem!r}"))
        self._findings = len(self._cluster.loop.findings)

    def _meet(self, process: SimProcess) -> None:
        if process not in self._known:
            self._known.add(process)
            process.loop.at_death(partial(self._died, process))
            self._standstills.meet(process)

    def _died(self, process: SimProcess) -> None:
        system = self._cluster.systems.get(process)
        if system is not None:
            self._read(process, system)
        if process.ended is not None and process.ended.code == GAVE_UP:
            self.recoveries.gave_up()

    def _look_at(self, process: SimProcess, system: ActorSystem) -> None:
        waits = system.waits.snapshot()
        if self._looks % LOOKS_A_READ == 0:
            self._read(process, system, waits)
        if process.loop.frozen:
            self._frozen_s[process] = self._now_s
        elif self._now_s - self._frozen_s.get(process, -LATE_S) >= LATE_S:
            for wait in waits:
                self._look_at_wait(process, wait)
        most_unacked, most_held = system.links.limits.max_unacked, 2 * system.links.limits.window
        for unacked, held in system.links.backlogs():
            self._measure(process, "a link's unacknowledged messages", unacked, most_unacked)
            self._measure(process, "a link's held messages", held, most_held)
        most = system.limits.mailbox + SYSTEM_LIMIT
        for cell in system.cells():
            waiting = len(cell.mailbox)
            if waiting > most:
                self._measure(process, f"mailbox of {cell.address.name}", waiting, most)

    def _read(
        self,
        process: SimProcess,
        system: ActorSystem,
        waits: list[WaitState] | None = None,
    ) -> None:
        """waits: of this process now, where the caller has them."""
        name = f"{process.name}#{process.pid}"
        state = system.inspection.state(waits)
        self.recoveries.shown(name, state)
        self.recoveries.lost(name, system.links.lost.total())
        ring = self._cluster.setting.config.limits.ring_frames
        for actor in state.actors:
            frames = actor.figures.get("unacknowledged")
            if isinstance(frames, int) and frames > ring:
                self._measure(process, f"the ring of {actor.name}", frames, ring)

    def _look_at_wait(self, process: SimProcess, wait: WaitState) -> None:
        key = (process.name, wait.who, wait.what, wait.on, round(self._now_s - wait.since_s, 3))
        if wait.expired:
            seen = ExpiredSeen(self._now_s, process.name, wait.who, wait.what, wait.on, wait.since_s)
            self._jury.see(seen)
        if wait.left_s > 0 or wait.expired:
            self._late.pop(key, None)
            return
        late_s = self._now_s - self._late.setdefault(key, self._now_s)
        if late_s >= LATE_S and key not in self._reported:
            self._reported.add(key)
            self._jury.see(LateWait(self._now_s, process.name, wait.who, wait.what, wait.on, late_s))

    def _measure(self, process: SimProcess, what: str, value: float, limit: float) -> None:
        if value > limit:
            self._jury.see(Measured(self._now_s, process.name, what, value, limit))

    # -- weights --

    def _note_published(self, host: Host, message: Published) -> None:
        image = self._image(host, message.version)
        if image is not None:
            self._truth.published(message.root, image)
            self._published[message.version, message.root] = digest_of(image)

    def _look_at_image(self, host: Host, message: Serving | Fetched) -> None:
        image = self._image(host, message.version)
        if image is not None:
            published = self._published.get((message.version, message.root))
            self._jury.see(
                ServedImage(
                    self._now_s, host.name, message.version, message.root, digest_of(image), published
                )
            )

    def _image(self, host: Host, version: int) -> bytes | None:
        """The bytes of an image in a host's store; None where they were removed."""
        path = str(places.store_dir(self._cluster.job, host.name) / f"v{version:09d}.image")
        if not host.memory.exists(path):
            return None
        return host.memory.read(path)

    # -- the trainer's state --

    def _newest_state(self, host: Host) -> int:
        """The newest whole state on a host, by the bytes in its memory and on its disk; -1: none."""
        job = self._cluster.job
        memory = FileMapping(host.memory, places.SHARED_MEMORY)
        copy = SimCopies(memory, places.state_copy_dir(job, host.name), Immediate()).newest()
        saved = [seen.step for seen in saved_steps([host], job) if not seen.damage]
        return max([-1 if copy is None else copy.step, *saved])

    @property
    def _now_s(self) -> float:
        return self._cluster.loop.now_s


def digest_of(image: bytes) -> bytes:
    """Distinguishes two images."""
    return xxhash.xxh3_128_digest(image)


@contextmanager
def acknowledgements(notify: Callable[[str, int, int], None]) -> Iterator[None]:
    """Within this context, `reported` is called for every acknowledgement of frames before the instance
    receives it."""
    plain = StreamReceiver.acknowledge

    def acknowledge(receiver: StreamReceiver, stream: str, incarnation: int, seq: int) -> None:
        notify(stream, incarnation, seq)
        plain(receiver, stream, incarnation, seq)

    StreamReceiver.acknowledge = acknowledge  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        StreamReceiver.acknowledge = plain  # type: ignore[method-assign]
