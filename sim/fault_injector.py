"""FaultInjector: fault injectors of a simulated cluster, one call for each fault.

A call returns whether the fault could be injected. Owns the targets: hosts by name, processes by host and
kind. Decides nothing: the caller chooses which fault begins when, and when it is over. Faults that wait for a
message or a commit are here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from gleaner.actors.protocol.cluster import CloudNotice, PreemptionNotice
from gleaner.nodeagent.defaults import MAY_LEAVE
from gleaner.sim.client import say
from gleaner.sim.cluster import SimCluster
from gleaner.sim.foreign_items import ForeignItems, send_results
from gleaner.sim.hosts import SIGCONT, SIGKILL, SIGSTOP, Host, SimProcess
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.models.scorer import Fault
from gleaner.sim.run_setup import CLIENT, role_of
from gleaner.supervisor import Message

Moment = Literal["received", "sent", "replied"]
NOTICE_S = 5.0  # for a host to take its notice
POLL_S = 2.0  # between two polls of a host's cloud
STAY_LOOK_S = 0.1  # between two looks whether the host of a notice is still there
TAKEN_BACK_S = 20.0  # so long the cloud reports that a notice is taken back


class FaultInjector:
    """See the module."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._hung: set[SimProcess] = set()

    def at(self, when_s: float, work: Callable[[], object]) -> None:
        """Do this at that virtual time, in no process's turn."""
        self._cluster.loop.call_at(when_s, work)

    # -- targets --

    def hosts(self, role: str = "") -> list[str]:
        """Hosts that have power; of one role: head, reserved, preemptible or reward."""
        up = [name for name, host in self._cluster.hosts.items() if host.up and name != CLIENT]
        return [name for name in up if not role or role_of(name) == role]

    def process(self, host: str, kind: str) -> SimProcess | None:
        """The living process of a kind on a host; None if there is none now."""
        found = self._cluster.hosts.get(host)
        return found.find(kind) if found is not None else None

    # -- processes --

    def kill_process(self, host: str, kind: str) -> bool:
        """SIGKILL."""
        return self._signal(host, kind, SIGKILL)

    def crash_actor(self, host: str, kind: str, actor: str) -> bool:
        """A defect ends the actor whose name ends in `actor`, in the process's own turn."""
        process = self.process(host, kind)
        system = self._cluster.systems.get(process) if process is not None else None
        cells = system.cells() if system is not None else []
        found = next((cell for cell in cells if cell.address.name.rpartition("/")[2] == actor), None)
        if process is None or found is None:
            return False
        process.loop.call_soon(found.crash, RuntimeError("a defect that chaos planted"))
        return True

    def freeze(self, host: str, kind: str) -> bool:
        """SIGSTOP."""
        return self._signal(host, kind, SIGSTOP)

    def thaw(self, host: str, kind: str) -> bool:
        """SIGCONT to the process that is frozen for a time; meanwhile another may have replaced it."""
        found = self._cluster.hosts.get(host)
        processes = found.processes if found is not None else []
        stands = (one for one in processes if one.kind == kind and one.loop.frozen)
        frozen = [one for one in stands if one not in self._hung]
        for process in frozen:
            process.send_signal(SIGCONT)
        return bool(frozen)

    def hang(self, host: str, kind: str) -> bool:
        """SIGSTOP without end: no `thaw` wakes it."""
        process = self.process(host, kind)
        if process is not None:
            process.send_signal(SIGSTOP)
            self._hung.add(process)
        return process is not None

    def slow(self, host: str, kind: str, factor: float) -> bool:
        """All that the process does takes `factor` times as long; 1 is its usual pace."""
        process = self.process(host, kind)
        if process is not None:
            process.loop.slow(factor)
        return process is not None

    def _signal(self, host: str, kind: str, number: int) -> bool:
        process = self.process(host, kind)
        if process is not None:
            process.struck = process.struck or number == SIGKILL
            process.send_signal(number)
        return process is not None

    # -- hosts --

    def kill_host(self, name: str) -> bool:
        """Power off, without any message. A preemptible host returns when the provider rents it again; the
        others by `start_host`."""
        host = self._up(name)
        if host is None:
            return False
        if name in self._cluster.inits:
            self._cluster.inits[name].halt()
            host.power_off()
            return True
        return self._cluster.cloud.take_away(name)

    def kill_zone(self, zone: str) -> bool:
        """Power off every preemptible host of a zone."""
        hit = [name for name in self.hosts("preemptible") if self._cluster.hosts[name].zone == zone]
        return any([self.kill_host(name) for name in hit])

    def start_host(self, name: str) -> bool:
        """Power on again, at the same address and with its disk: any host but a preemptible one."""
        init = self._cluster.inits.get(name)
        if init is None or self._cluster.hosts[name].up:
            return False
        init.boot()
        return True

    def notice(self, name: str, notice_s: float) -> bool:
        """The cloud gives a preemptible host or a reward host its notice, and takes it away when its time is
        over; another machine takes the place of a reward host."""
        cluster = self._cluster
        if self._up(name) is None or role_of(name) not in MAY_LEAVE or cluster.client is None:
            return False
        lease, process = cluster.stay(name), cluster.hosts[CLIENT].processes[0]
        order = self._send_notice(name, lease, PreemptionNotice(deadline_s=notice_s))
        process.loop.create_task(order, name=f"notice to {name}")
        cluster.loop.call_later(notice_s, self._take_away, name, lease)
        return True

    async def _send_notice(self, name: str, lease: object, notice: Message) -> None:
        """Send a notice to this stay of a host: a cloud does not send it to the next host of that name."""
        assert self._cluster.client is not None
        order = asyncio.ensure_future(say(self._cluster.client, f"{name}/agent", notice, NOTICE_S))
        while not order.done() and self._cluster.stay(name) == lease:
            await asyncio.wait({order}, timeout=STAY_LOOK_S)
        order.cancel()

    def _take_away(self, name: str, lease: object) -> None:
        """The time of a notice is over."""
        cluster = self._cluster
        if name not in cluster.inits:
            cluster.cloud.take_away(name, lease=lease)
        elif cluster.stay(name) == lease and cluster.hosts[name].up:
            cluster.replace_host(name)

    def false_notice(self, name: str, notice_s: float, back_s: float, *, hint: bool) -> bool:
        """The cloud gives a preemptible host or a reward host its notice (or a hint that one may follow), and
        takes it back."""
        cluster = self._cluster
        if self._up(name) is None or role_of(name) not in MAY_LEAVE or cluster.client is None:
            return False
        process = cluster.hosts[CLIENT].processes[0]
        lease = cluster.stay(name)

        async def follow() -> None:
            """Repeat the cloud's notice, as a real host's poller does, because messages may be lost."""
            now = process.loop.time
            gone_at_s, back_at_s = now() + notice_s, now() + back_s
            while cluster.stay(name) == lease and now() < back_at_s + TAKEN_BACK_S:
                word = CloudNotice(kind="none")
                if now() < back_at_s:
                    word = CloudNotice(kind="hint" if hint else "notice", deadline_s=gone_at_s - now())
                await self._send_notice(name, lease, word)
                await asyncio.sleep(max(POLL_S / 10, min(POLL_S, back_at_s - now())))

        process.loop.create_task(follow(), name=f"notice to {name}")
        return True

    def clock_jump(self, host: str, by_s: float) -> bool:
        """The host's wall clock jumps; monotonic time goes on."""
        if host not in self._cluster.hosts:
            return False
        self._cluster.loop.jump_wall(host, by_s)
        return True

    def fill_disk(self, host: str) -> bool:
        """Fill its disk: it takes nothing any more."""
        found = self._cluster.hosts.get(host)
        if found is None or found.disk.full:
            return False
        found.disk.fill()
        return True

    def empty_disk(self, host: str) -> None:
        """There is space again."""
        self._cluster.hosts[host].disk.make_room()

    def fill_memory(self, host: str) -> bool:
        """Its shared memory takes nothing any more, nor does that of its next life if the host is off."""
        found = self._cluster.hosts.get(host)
        if found is None or found.memory.full:
            return False
        found.memory.fill()
        return True

    def empty_memory(self, host: str) -> None:
        """The memory has free space again."""
        self._cluster.hosts[host].memory.make_room()

    def _up(self, name: str) -> Host | None:
        host = self._cluster.hosts.get(name)
        return host if host is not None and host.up and name != CLIENT else None

    # -- the network --

    def partition(self, a: str, b: str, *, both: bool = True) -> bool:
        """Nothing gets from `a` to `b` (`both`: nor back); no process is notified."""
        if not {a, b} <= self._cluster.hosts.keys():
            return False
        self._cluster.net.partition(a, b)
        if both:
            self._cluster.net.partition(b, a)
        return True

    def heal(self, a: str, b: str) -> None:
        """End a partition of either direction."""
        self._cluster.net.heal(a, b)
        self._cluster.net.heal(b, a)

    def bad_link(
        self,
        a: str,
        b: str,
        *,
        loss: float = 0.0,
        duplicate: float = 0.0,
        delay_s: float = 0.0,
        jitter_s: float = 0.0,
        bytes_per_s: float = 0.0,
    ) -> bool:
        """A bad network between two hosts, in both directions: `loss` of packets, which TCP sends again, and
        of messages; `duplicate` of messages; delays on top of the usual; `bytes_per_s`: 0 leaves the rate."""
        if not {a, b} <= self._cluster.hosts.keys():
            return False
        usual = self._cluster.setting.link
        bad = replace(
            usual,
            loss=loss,
            vanish=loss,
            double=duplicate,
            latency_s=usual.latency_s + delay_s,
            jitter_s=usual.jitter_s + jitter_s,
            rate_bytes_s=bytes_per_s or usual.rate_bytes_s,
        )
        self._cluster.net.set_link(a, b, bad)
        self._cluster.net.set_link(b, a, bad)
        return True

    def good_link(self, a: str, b: str) -> None:
        """Restore the link as at the beginning."""
        self._cluster.net.set_link(a, b, self._cluster.setting.link)
        self._cluster.net.set_link(b, a, self._cluster.setting.link)

    def reset(self, a: str, b: str) -> bool:
        """Every connection between the two breaks."""
        if not {a, b} <= self._cluster.hosts.keys():
            return False
        self._cluster.net.reset(a, b)
        return True

    # -- faults that wait for an event --

    def corrupt_chunks(self, host: str, count: int, done: Callable[[], None]) -> bool:
        """The next `count` pieces of weights that reach a host have a flipped bit: `done` for each."""
        if self._up(host) is None:
            return False
        self._cluster.net.spoil(host, count, done)
        return True

    def fail_loads(self, host: str, count: int, done: Callable[[], None]) -> bool:
        """The next `count` loads of newer weights on a host fail, as far as the job can bear that: `done` for
        each."""
        if self._up(host) is None:
            return False
        for _ in range(count):
            self._cluster.load_faults.order(host, done)
        return True

    def bad_scorer(self, how: str, count: int, done: Callable[[], None]) -> bool:
        """The next `count` answers of verifiers: `hang`, `crash` or `lie`. `done` is called at each of
        them."""
        kinds = {"hang": Fault.HANG, "crash": Fault.CRASH, "lie": Fault.WRONG_KIND}
        for _ in range(count):
            self._cluster.scorer_faults.order(kinds[how], done)
        return True

    def foreign_results(self, host: str, count: int, done: Callable[[], None]) -> bool:
        """The reward host answers each of the next `count` items that the proxy gives to another one, with a
        score that no verifier gives: `done` for each."""
        if self._up(host) is None or role_of(host) != "reward":
            return False
        foreign = ForeignItems(f"{host}/reward", count)

        def hook(seen: ObservedMessage) -> None:
            process = self.process(host, "reward-host")
            system = self._cluster.systems.get(process) if process is not None else None
            if process is not None and system is not None:
                for results in foreign.results(seen):
                    process.loop.call_soon(send_results, system, results)
                    done()
            if not foreign.left:
                self._cluster.unwatch(hook)

        self._cluster.watch(hook)
        return True

    def sick_verifier(self, how: str) -> bool:
        """No verifier gives a score until `well_verifier`: each one raises, hangs or crashes (`how`)."""
        kinds = {
            "raise": Fault.RAISE,
            "hang": Fault.HANG,
            "crash": Fault.CRASH,
            "judge_away": Fault.JUDGE_AWAY,
        }
        self._cluster.scorer_faults.standing = kinds[how]
        return True

    def well_verifier(self) -> None:
        """Verifiers give scores again."""
        self._cluster.scorer_faults.standing = None

    def kill_on_message(
        self,
        host: str,
        kind: str,
        message: str,
        count: int,
        moment: Moment,
        done: Callable[[], None],
        *,
        power_back_s: float = 0.0,
    ) -> bool:
        """SIGKILL to the process of that kind on that host at the `count`-th message of a kind that passes it
        from now on. `received`: before it is handled; `sent`: before it leaves; `replied`: when the answer to
        one of them is made and before it leaves, which is after its effects were committed. `power_back_s`
        above 0: the whole host loses its power, and gets it back so long after."""
        wait = _Wait(host, kind, message, count, moment)

        def hook(seen: ObservedMessage) -> None:
            if wait.over(seen):
                self._cluster.unwatch(hook)
                if power_back_s > 0:
                    self.kill_host(host)
                    self._cluster.loop.call_later(power_back_s, lambda: self.start_host(host))
                else:
                    seen.process.kill()
                done()

        self._cluster.watch(hook)
        return host in self._cluster.hosts

    def kill_in_commit(self, host: str, kind: str, *, torn: bool, done: Callable[[], None]) -> bool:
        """Power cut of a process in the middle of its next commit."""
        process = self.process(host, kind)
        if process is None:
            return False

        def cut() -> None:
            process.kill()
            done()

        self._cluster.hosts[host].disk.at_next_commit(process.loop, cut, "torn" if torn else "lost")
        return True


class _Wait:
    """Counts the messages of a kind that pass the process of a kind."""

    def __init__(self, host: str, kind: str, message: str, count: int, moment: Moment) -> None:
        self._host, self._kind, self._message, self._left, self._moment = host, kind, message, count, moment
        self._asked: list[tuple[str, str]] = []  # (receiver, sender) of asks without an answer yet

    def over(self, seen: ObservedMessage) -> bool:
        """Whether this is the one that was waited for."""
        if seen.process.host.name != self._host or seen.process.kind != self._kind:
            return False
        if not self._counts(seen):
            return False
        self._left -= 1
        return self._left == 0

    def _counts(self, seen: ObservedMessage) -> bool:
        answer = seen.mode in ("reply", "error")
        if self._moment == "replied":
            if answer and seen.direction != "in" and (seen.source, seen.to) in self._asked:
                self._asked.remove((seen.source, seen.to))
                return True
            if not answer and seen.direction != "out" and seen.kind == self._message:
                self._asked.append((seen.to, seen.source))
            return False
        there = "in" if self._moment == "received" else "out"
        return not answer and seen.kind == self._message and seen.direction in (there, "local")
