"""LocalProvider with pretended hosts."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gleaner.actors.cluster.provider import LocalProvider
from gleaner.actors.protocol.cluster import (
    JobEnded,
    JobSpec,
    PreemptionNotice,
    SetFleet,
    StartFleet,
    StartTrace,
    StopFleet,
)
from gleaner.configs import load
from gleaner.configs.schema import Config, Fleet
from gleaner.configs.trace import Trace, TraceError, parse
from gleaner.supervisor import Actor, Done, ProcessExit, Refused, handles
from gleaner.supervisor.testing import TestSystem

ROWS = "t_seconds,event,instance_id\n0,add,a\n0,add,b\n0.6,notice,b\n0.8,remove,a\n1.2,remove,b\n60,add,c\n"


class PretendedHosts:
    """A `provider.Hosts` without processes."""

    def __init__(self) -> None:
        self.up: list[str] = []
        self.log: list[str] = []
        self._ended: list[tuple[str, ProcessExit]] = []
        self.give_up: Callable[[str], None] = lambda _reason: None

    def running(self) -> list[str]:
        return list(self.up)

    def take_ended(self) -> list[tuple[str, ProcessExit]]:
        ended, self._ended = self._ended, []
        return ended

    async def keep_reserved(self, job: JobSpec, on_give_up: Callable[[str], None]) -> None:
        self.give_up = on_give_up
        self.log.append("reserved")

    def start(self, name: str, job: JobSpec) -> None:
        assert name not in self.up
        self.up.append(name)
        self.log.append(f"start {name}")

    def kill(self, name: str) -> None:
        self.log.append(f"kill {name}")
        self.end(name, ProcessExit(None, 9))

    def end(self, name: str, exit_: ProcessExit) -> None:
        self.up.remove(name)
        self._ended.append((name, exit_))

    async def stop(self) -> None:
        self.log.append("stop")
        self.up.clear()


class Agent(Actor):
    """A host's agent that receives its notice."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    @handles(PreemptionNotice)
    async def noticed(self, message: PreemptionNotice) -> None:
        self._log.append(f"notice {self.ctx.name} {message.deadline_s:.0f}")


class Scheduler(Actor):
    """Receives the end of a failed job."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    @handles(JobEnded)
    async def ended(self, message: JobEnded) -> None:
        self._log.append(message.reason)


def job(run_id: str = "run", *, trace: str = "trace.csv") -> JobSpec:
    config = Config(fleet=Fleet(n_prem_max=2, trace=trace))
    return JobSpec(run_id=run_id, run_dir="/nowhere", model_dir="/nowhere", config=load.dump(config))


def read(path: str) -> Trace:
    return parse(ROWS, path)


def provide(
    test: TestSystem, hosts: PretendedHosts | None, boot: int = 1, read_trace: Callable[[str], Trace] = read
) -> None:
    test.spawn("cluster/provider", lambda: LocalProvider(hosts, boot, read_trace))


async def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)


async def test_hosts_start_before_the_clock_and_follow_trace(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        hosts = PretendedHosts()
        provide(test, hosts)
        test.spawn("b/agent", lambda: Agent(hosts.log))
        await test.ask("cluster/provider", StartFleet(job=job()), Done)
        await test.ask("cluster/provider", StartFleet(job=job()), Done)
        await asyncio.sleep(1.0)  # the trace's removals are due, but its clock does not run
        assert hosts.log == ["reserved", "start a", "start b"]
        await test.tell("cluster/provider", StartTrace())
        await until(lambda: "kill b" in hosts.log)
        assert hosts.log[3:] == ["notice b/agent 1", "kill a", "kill b"]


async def test_host_beyond_n_prem_waits_for_free_capacity(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        hosts = PretendedHosts()
        provide(test, hosts)
        await test.ask("cluster/provider", StartFleet(job=job()), Done)
        await test.tell("cluster/provider", SetFleet(n_prem=1))
        hosts.end("a", ProcessExit(None, 9))
        await asyncio.sleep(1.5)  # longer than the pause before a replacement
        assert hosts.up == ["b"]
        await test.tell("cluster/provider", SetFleet(n_prem=2))
        await until(lambda: hosts.up == ["b", "a"])


async def test_restarted_provider_continues_its_clock_and_keeps_hosts(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        hosts = PretendedHosts()
        provide(test, hosts)
        await test.ask("cluster/provider", StartFleet(job=job()), Done)
        await test.tell("cluster/provider", StartTrace())
        await until(lambda: hosts.up == ["b"])
        test.kill("cluster/provider")
        provide(test, hosts)
        await until(lambda: hosts.up == [])
        assert hosts.log.count("start b") == 1


async def test_restarted_provider_rents_no_more_hosts_than_planned(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        hosts = PretendedHosts()
        provide(test, hosts)
        await test.ask("cluster/provider", StartFleet(job=job()), Done)
        await test.tell("cluster/provider", SetFleet(n_prem=1))
        await asyncio.sleep(0.2)
        test.kill("cluster/provider")
        hosts.end("a", ProcessExit(None, 9))
        provide(test, hosts)
        await asyncio.sleep(1.5)  # longer than the pause before a replacement
        assert hosts.up == ["b"]


async def test_resumed_clock_waits_where_it_stopped(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        hosts = PretendedHosts()
        provide(test, hosts)
        await test.ask("cluster/provider", StartFleet(job=job()), Done)
        await test.tell("cluster/provider", StartTrace())
        await asyncio.sleep(2.5)  # beyond every removal, by more than the clock's journal lags
        test.kill("cluster/provider")
        resumed = PretendedHosts()
        provide(test, resumed, boot=2)
        await test.ask("cluster/provider", StartFleet(job=job()), Done)
        await asyncio.sleep(0.5)
        assert resumed.log == ["reserved"]  # a and b are gone, c is not there yet


async def test_dead_host_is_replaced_after_a_pause(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        hosts = PretendedHosts()
        provide(test, hosts)
        await test.ask("cluster/provider", StartFleet(job=job()), Done)
        hosts.end("a", ProcessExit(None, 9))
        await until(lambda: hosts.up == ["b", "a"])


async def test_unreadable_trace_is_refused(tmp_path: Path) -> None:
    def unreadable(path: str) -> Trace:
        raise TraceError(f"{path}:3: unknown event 'boom'")

    async with TestSystem(tmp_path) as test:
        provide(test, PretendedHosts(), read_trace=unreadable)
        with pytest.raises(Refused, match="boom"):
            await test.ask("cluster/provider", StartFleet(job=job()), Done)


async def test_instance_named_like_the_head_is_refused(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        hosts = PretendedHosts()
        provide(test, hosts, read_trace=lambda p: parse("t_seconds,event,instance_id\n0,add,head\n", p))
        with pytest.raises(Refused, match="rename"):
            await test.ask("cluster/provider", StartFleet(job=job()), Done)
        assert hosts.log == []


async def test_failing_reserved_host_ends_the_job(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        hosts, log = PretendedHosts(), list[str]()
        test.spawn("cluster/scheduler", lambda: Scheduler(log))
        provide(test, hosts)
        await test.ask("cluster/provider", StartFleet(job=job()), Done)
        hosts.give_up("the reserved host: SIGKILL again")
        await until(lambda: log == ["the reserved host: SIGKILL again"])


async def test_stopped_fleet_starts_nothing_and_accepts_another_job(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        hosts = PretendedHosts()
        provide(test, hosts)
        await test.ask("cluster/provider", StartFleet(job=job()), Done)
        with pytest.raises(Refused, match="another job"):
            await test.ask("cluster/provider", StartFleet(job=job("other")), Done)
        await test.ask("cluster/provider", StopFleet(), Done)
        await until(lambda: "stop" in hosts.log)
        await asyncio.sleep(0.5)
        assert hosts.up == []
        await test.ask("cluster/provider", StartFleet(job=job("other", trace="")), Done)
        await until(lambda: hosts.up == ["spot-1", "spot-2"])


async def test_provider_starts_nothing_when_hosts_join_by_themselves(tmp_path: Path) -> None:
    async with TestSystem(tmp_path) as test:
        provide(test, None, read_trace=lambda _: pytest.fail("read a trace"))
        await test.ask("cluster/provider", StartFleet(job=job()), Done)
        await test.tell("cluster/provider", StartTrace())
        await test.tell("cluster/provider", SetFleet(n_prem=3))
        await test.ask("cluster/provider", StopFleet(), Done)
