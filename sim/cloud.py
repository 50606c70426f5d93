"""Cloud: powers simulated hosts on, keeps their node agents, takes hosts away.

Owns the init system of each host (as the shipped systemd unit has it: again after a failure, never after an
end that would be the same) and the preemptible hosts that are rented. To the production Provider it is a
`provider.Hosts`, made anew in each life of the head: the hosts themselves outlive it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from gleaner.actors.cluster.job import host_dir
from gleaner.actors.cluster.local_hosts import ORDER_S, STOP_S
from gleaner.actors.protocol.cluster import JobSpec, StopNode
from gleaner.nodeagent.exit_codes import CUT_SHORT, DAMAGED, IN_USE, OK, USAGE
from gleaner.sim.hosts import KILLED, Host, Main, SimProcess
from gleaner.sim.run_setup import Paces
from gleaner.supervisor import ActorSystem, AskFailed, Done, ProcessExit

AGENT = "agent"
LOOK_S = 0.2
WATCHDOG_LOOKS = 8  # checks of an agent within the time in which its next sign of life is due
NOT_AGAIN = frozenset({OK, USAGE, IN_USE, DAMAGED, CUT_SHORT})
"""Exit codes after which the unit is not started again."""


class Init:
    """The init system of one host: its node agent is started with the host and after each failure.

    Args:
        main: what the node agent runs. on_done: called with its end if it is not started again after that.
        kind: of the process; another one than a node agent sends no signs of life.
    """

    def __init__(
        self,
        host: Host,
        main: Main,
        paces: Paces,
        on_done: Callable[[ProcessExit], None] | None = None,
        kind: str = AGENT,
    ) -> None:
        self._host, self._main, self._paces, self._on_done = host, main, paces, on_done
        self._kind = kind
        self.life = 0
        """Counts the lives of the host: each boot begins one, and `halt` ends it."""

    def boot(self, longer_s: float = 0.0) -> None:
        """Start the host, `longer_s` later than usual."""
        self.life += 1
        self._host.loop.call_later(self._paces.boot_s + longer_s, self._up, self.life)

    def halt(self) -> None:
        """Do not start the host, nor anything on it, any more."""
        self.life += 1

    def _up(self, life: int) -> None:
        if life == self.life:
            self._host.power_on()
            self._start(life)

    def _start(self, life: int) -> None:
        if life == self.life and self._host.up:
            process = self._host.start(f"{self._host.name}/{self._kind}", self._main, self._paces.start_s)
            process.loop.at_death(lambda: self._ended(process, life))
            if self._kind == AGENT:
                process.watchdog_s = self._paces.watchdog_s
                self._look(process, self._host.loop.now_s)

    def _look(self, process: SimProcess, started_s: float) -> None:
        """An agent must report in time that it is ready, and then regularly that it lives."""
        if not process.alive:
            return
        now_s, limit_s, since_s = self._host.loop.now_s, self._paces.watchdog_s, process.notified_s
        if since_s is None:
            limit_s, since_s = self._paces.ready_s, started_s
        if now_s - since_s > limit_s:
            process.kill(f"no sign of life to the init system for {limit_s:g} s")
        else:
            self._host.loop.call_later(
                self._paces.watchdog_s / WATCHDOG_LOOKS, self._look, process, started_s
            )

    def _ended(self, process: SimProcess, life: int) -> None:
        if life != self.life or not self._host.up:
            return
        exit_ = process.ended or KILLED
        if exit_.code not in NOT_AGAIN:
            self._host.loop.call_later(self._paces.restart_s, self._start, life)
        elif self._on_done is not None:
            self._on_done(exit_)


class Cloud:
    """Preemptible hosts that can be rented, by name.

    Args:
        hosts: every host that may ever exist. agent: what the node agent of a host runs for a job.
        rng: of its own, from the seed.
    """

    def __init__(
        self,
        hosts: Mapping[str, Host],
        agent: Callable[[str, Path], Main],
        paces: Paces,
        rng: random.Random,
    ) -> None:
        self._rng = rng
        self._hosts = hosts
        self._agent = agent
        self._paces = paces
        self._rented: dict[str, Init] = {}
        self._listeners: list[Callable[[str, ProcessExit], None]] = []
        self.on_withdrawn: Callable[[str], None] | None = None
        """Called for each running host that the head's provider took away, as its trace demanded."""
        self.on_rented: Callable[[str], None] | None = None
        """Called before a host is powered on."""
        self.on_delivered: Callable[[str], None] | None = None
        """Called before a host is powered on that was not requested."""
        self.refuses = False
        """Whether each request for a host is refused."""
        self.late_s = 0.0
        """So much longer than usual a host takes until it has power."""
        self._state_dirs: dict[str, Path] = {}  # where each host was ordered to keep its state

    def rented(self) -> list[str]:
        """Hosts that are up, or about to be."""
        return list(self._rented)

    def rent(self, name: str, state_dir: Path) -> None:
        """Power a host on. Raises OSError if there is none of this name."""
        if name not in self._hosts:
            raise OSError(f"no host {name} can be had: there are {', '.join(self._hosts)}")
        if self.refuses:
            raise OSError(f"the cloud has no capacity for {name}")
        if self.on_rented is not None:
            self.on_rented(name)
        self._state_dirs[name] = state_dir
        self._power_on(name, state_dir)

    def deliver(self, name: str) -> bool:
        """Power a host on that was not requested, with the settings of the newest request; returns whether
        there is such a host, and there was a request."""
        if name not in self._hosts or name in self._rented or not self._state_dirs:
            return False
        if self.on_delivered is not None:
            self.on_delivered(name)
        newest = next(reversed(self._state_dirs.values()))
        self._power_on(name, newest.with_name(name))
        return True

    def unasked(self, name: str) -> bool:
        """Whether the host was never requested."""
        return name not in self._state_dirs

    def _power_on(self, name: str, state_dir: Path) -> None:
        host = self._hosts[name]
        init = Init(
            host,
            self._agent(name, state_dir),
            self._paces,
            lambda exit_: void(self.take_away(name, how=exit_)),
        )
        self._rented[name] = init
        init.boot(self._rng.uniform(0.0, self._paces.boot_spread_s) + self.late_s)

    def lease(self, name: str) -> object:
        """A token of the present stay of a host, for comparison; None where it is not rented."""
        return self._rented.get(name)

    def take_away(self, name: str, *, how: ProcessExit = KILLED, lease: object = None) -> bool:
        """Power off, and report to the renter how it ended; returns whether there was a host. `lease`: only
        if that stay still lasts."""
        init = self._rented.get(name)
        if init is None or (lease is not None and lease is not init):
            return False
        del self._rented[name]
        init.halt()
        self._hosts[name].power_off()
        for tell in self._listeners:
            tell(name, how)
        return True

    async def gone(self, name: str) -> None:
        """Until the present stay of a host is over. It has no deadline: the caller has one."""
        lease = self.lease(name)
        while lease is not None and self.lease(name) is lease:  # noqa: ASYNC110 (a cloud is asked)
            await asyncio.sleep(LOOK_S)

    def tell(self, on_exit: Callable[[str, ProcessExit], None]) -> None:
        """Call this, from now on, when a host has ended."""
        self._listeners.append(on_exit)


class CloudHosts:
    """`gleaner.nodeagent.host_services.FleetHosts` of one life of the head. The reserved host is there by
    itself."""

    def __init__(self, cloud: Cloud, head: SimProcess, system: ActorSystem) -> None:
        self._cloud, self._head, self._system = cloud, head, system
        self._ended: list[tuple[str, ProcessExit]] = []
        self._used: dict[str, JobSpec] = {}
        cloud.tell(self._host_ended)

    def running(self) -> list[str]:
        """See `provider.Hosts`."""
        return self._cloud.rented()

    async def keep_reserved(self, job: JobSpec, on_give_up: Callable[[str], None]) -> None:
        """See `provider.Hosts`: its init system does."""

    def take_ended(self) -> list[tuple[str, ProcessExit]]:
        """See `provider.Hosts`."""
        ended, self._ended = self._ended, []
        return ended

    def start(self, name: str, job: JobSpec) -> None:
        """See `provider.Hosts`."""
        self._used[name] = job
        self._cloud.rent(name, host_dir(job, name))

    def kill(self, name: str) -> None:
        """See `provider.Hosts`."""
        asked = not self._cloud.unasked(name)
        if self._cloud.take_away(name) and asked and self._cloud.on_withdrawn is not None:
            self._cloud.on_withdrawn(name)

    async def stop(self) -> None:
        """See `provider.Hosts`: in order if a host takes the order, else by force."""
        await asyncio.gather(*[self._let_go(name) for name in self._cloud.rented()])

    async def _let_go(self, name: str) -> None:
        lease = self._cloud.lease(name)
        with contextlib.suppress(AskFailed, TimeoutError):
            await self._system.ask(f"{name}/agent", StopNode(), deadline_s=ORDER_S, expect=Done)
            async with asyncio.timeout(STOP_S):
                await self._cloud.gone(name)
        if lease is not None:
            self._cloud.take_away(name, lease=lease)

    def forget_memory(self) -> None:
        """Nothing to do: a host's memory goes with its power."""

    def state_dirs(self) -> list[Path]:
        """State directories of every host that was started here."""
        return [host_dir(job, name) for name, job in self._used.items()]

    def _host_ended(self, name: str, how: ProcessExit) -> None:
        if self._head.alive:
            self._head.loop.call_soon(self._keep_end, name, how)

    def _keep_end(self, name: str, how: ProcessExit) -> None:
        self._ended.append((name, how))  # the list is another one after each `take_ended`


def void(_: object) -> None:
    """For calls whose result is not needed."""
