"""SimCluster: hosts, network and disks under production node agents, and one job.

Owns the assembly and the order of a run: power on, submit as `rlctl` does, run to the end, stop in order,
collect the results. `fault_injector.Breaking` has the faults of a cluster; chaos decides which happens when,
and to which target. The same settings and seed give the same history.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from gleaner.actors.cluster.fleet import RESERVED
from gleaner.actors.cluster.local_hosts import Join
from gleaner.actors.protocol.cluster import JobIs
from gleaner.actors.training.records import AnyRecord
from gleaner.nodeagent.host import ProcessLocation
from gleaner.nodeagent.host_services import FleetHosts
from gleaner.sim.client import job_done, open_client
from gleaner.sim.cloud import Cloud, CloudHosts, Init, void
from gleaner.sim.commands import command_of
from gleaner.sim.host_adapters import HostAdapterFactory, OrderedFaults
from gleaner.sim.host_services import ClusterContext, SimHostServices, sockets
from gleaner.sim.hosts import SIGTERM, Host, HostSpec, Main, OnExit, SimProcess
from gleaner.sim.loop import SimLoop
from gleaner.sim.machine import SimMachine
from gleaner.sim.machine_faults import MachineFaults
from gleaner.sim.message_hooks import Hook, Watcher
from gleaner.sim.models.load_faults import LoadFaults
from gleaner.sim.models.scorer import ScorerFaults
from gleaner.sim.network import SimNet
from gleaner.sim.outcome import Ended, Outcome, disk_counts, kept_streams, saved_steps
from gleaner.sim.run_setup import CLIENT, HEAD, SCORES, SERVICE, RunSetup
from gleaner.sim.scoring_service import serve
from gleaner.sim.service_calls import ServiceCalls
from gleaner.sim.shared_cores import SharedCores
from gleaner.sim.slowness import Slowness
from gleaner.supervisor import ActorSystem
from gleaner.supervisor.machine import Child
from gleaner.supervisor.process import HEARTBEAT_VARIABLE, ProcessSpec
from gleaner.supervisor.watch.health import Parent
from gleaner.transport.wire import Peer

HEAD_PORT = 7700
STATE = Path("/var/lib/gleaner")
SETTLE_S = 60.0
"""Time for an ordered end of all hosts; a node agent takes 30 s at most."""
LOOK_S = 1.0
REPLACED_S = 5.0
"""Until another machine begins to boot in the place of a reward host that the cloud took away."""

Errand = Callable[[ActorSystem], Awaitable[None]]
"""Code of a user's program that works with the cluster, through an actor system of its own."""


class SimCluster:
    """See the module. Make it, `run` it; or run it piece by piece: `begin`, `advance`, `finish`.

    Args:
        setting: what it is made of.
        sink: gets the trace as text, line by line.
    """

    def __init__(self, setting: RunSetup, sink: Callable[[str], None] | None = None) -> None:
        self.setting = setting
        self.job = setting.job()
        self.loop = SimLoop(sink, setting.order_seed)
        self.net = SimNet(
            self.loop, random.Random(f"{setting.seed}/net"), self.loop.trace, profile=setting.link
        )
        names = [HEAD, RESERVED, CLIENT, *setting.preemptible_hosts(), *setting.reward_hosts()]
        names += [SCORES] * setting.shares
        self.hosts = {name: self._host(name) for name in names}
        """All hosts that may ever exist, by name."""
        self.systems: dict[SimProcess, ActorSystem] = {}
        """The actor system of each process that lives."""
        self.client: ActorSystem | None = None
        """The actor system of the client that submitted the job."""
        self.ended: JobIs | None = None
        """The scheduler's report of the job when it was over."""
        self.scorer_faults = ScorerFaults()
        """Faults that verifiers must have."""
        self.load_faults = LoadFaults()
        """Loads of weights that must fail."""
        self.machine_faults = MachineFaults(Slowness(lambda: self.loop.now_s))
        """Garbage of engines, and the pace of the trainer."""
        self.service_calls = ServiceCalls()
        """Calls of the reward service that scores for the job."""
        faults = OrderedFaults(self.scorer_faults, self.load_faults, self.machine_faults, self.service_calls)
        self._printed: list[tuple[float, str, str]] = []
        self._histories: dict[Path, list[AnyRecord]] = {}
        self._hooks: list[Hook] = []
        self._ended_s = 0.0
        self._shared_cores = SharedCores(setting.crowding)
        self._began_wall_s = time.perf_counter()
        self._around = ClusterContext(
            net=self.net,
            machine=self._machine,
            adapters=lambda process: HostAdapterFactory(process, setting, self.net, faults, self._histories),
            fleet=self._fleet,
            opened=self._opened,
            printed=lambda process, text: self._printed.append((self.loop.now_s, process.name, text)),
            wire_scale=setting.job_model.wire_scale,
        )
        self.cloud = Cloud(
            self.hosts, self._preemptible, setting.paces, random.Random(f"{setting.seed}/cloud")
        )
        """The cloud that rents preemptible hosts."""
        head = ["--role", "head", "--fleet", "local"]
        self.inits = {
            HEAD: Init(self.hosts[HEAD], self._agent(HEAD, STATE, HEAD_PORT, head), setting.paces),
            RESERVED: Init(
                self.hosts[RESERVED],
                self._agent(RESERVED, STATE, 0, ["--role", "reserved", "--join", self.head.endpoint]),
                setting.paces,
            ),
            **{name: self._reward_host(name) for name in setting.reward_hosts()},
            **({SCORES: self._service()} if setting.shares else {}),
        }
        """Init systems of the hosts that exist from the beginning."""

    @property
    def head(self) -> Peer:
        """Address of the head."""
        return Peer(f"tcp://{self.hosts[HEAD].address}:{HEAD_PORT}")

    @property
    def history(self) -> list[AnyRecord]:
        """The records of the controller so far."""
        return self._histories.get(Path(self.job.run_dir) / "history.jsonl", [])

    # -- a run --

    def run(self) -> Outcome:
        """The job from its submission to its end, or to the virtual deadline; then an ordered end."""
        self.begin()
        self.advance(self.setting.deadline_s)
        return self.finish()

    def begin(self) -> None:
        """Power on, and submit."""
        for init in self.inits.values():
            init.boot()
        self.hosts[CLIENT].power_on()
        self.hosts[CLIENT].start(f"{CLIENT}/rlctl", self._submit, self.setting.paces.start_s)

    def call(self, kind: str, errand: Errand) -> None:
        """Start another program on the client's host, a client as `rlctl` is one; `kind` names its process.
        Raises OSError before `begin`."""

        async def main(process: SimProcess) -> int:
            async with self._client(process) as system:
                await errand(system)
            return 0

        self.hosts[CLIENT].start(f"{CLIENT}/{kind}", main, self.setting.paces.start_s)

    def start_program(self, kind: str, main: Main) -> None:
        """Start a program on the client's host that is no actor system. Raises OSError before `begin`."""
        self.hosts[CLIENT].start(f"{CLIENT}/{kind}", main, self.setting.paces.start_s)

    @property
    def gateway(self) -> str:
        """Where the head's gateway listens, as "tcp://ADDRESS:PORT"; "" for none."""
        listen = self.setting.config.gateway.listen
        return f"tcp://{self.hosts[HEAD].address}:{listen.rpartition(':')[2]}" if listen else ""

    def advance(self, until_s: float) -> bool:
        """Run until `until_s` or the end of the job, whichever is first; returns whether the job is over."""
        if self.ended is None:
            self.loop.run(until_s)
        return self.ended is not None

    def finish(self, *, stopped: bool = False) -> Outcome:
        """Stop every host in order, then collect the results; the cluster cannot be used after that.
        `stopped`: the user stops the simulation itself, so nothing more is run."""
        over: Ended = "stopped" if stopped else "late"
        if self.ended is not None:
            over = "done" if self.ended.state == "done" else "failed"
        else:
            self._ended_s = self.loop.now_s
        trace_hash = self.loop.trace.hash
        if not stopped:
            self._stop_in_order()
        hosts = [host for name, host in self.hosts.items() if name != CLIENT]
        streams, unreadable = kept_streams(hosts)
        self.loop.close()
        return Outcome(
            seed=self.setting.seed,
            config=self.setting.config,
            job=self.job,
            ended=over,
            reason=self.ended.reason if self.ended is not None else f"not over after {self._ended_s:.0f} s",
            virtual_s=self._ended_s,
            wall_s=time.perf_counter() - self._began_wall_s,
            trace_hash=trace_hash if stopped else self.loop.trace.hash,
            turns=self.loop.turns,
            notes=self.loop.trace.notes,
            history=list(self.history),
            streams=streams,
            unreadable=unreadable,
            checkpoints=list(saved_steps(hosts, self.job)),
            findings=list(self.loop.findings),
            printed=self._printed,
            counts={**disk_counts(hosts), **{f"net: {what}": n for what, n in self.net.counts.items()}},
        )

    def _stop_in_order(self) -> None:
        """Stop as an operator does: the head, which releases its hosts, and those that it did not rent."""
        names = tuple(self.inits)
        for name in names:
            self.inits[name].halt()
            for process in self.hosts[name].processes:
                if process.parent is None:
                    process.send_signal(SIGTERM)
        until_s = self.loop.now_s + SETTLE_S
        while self.loop.now_s < until_s and any(self.hosts[name].processes for name in names):
            self.loop.run(self.loop.now_s + LOOK_S)

    # -- looking --

    def stay(self, name: str) -> object:
        """A token of the present stay of a host, for comparison; None where it is not rented."""
        return self.inits[name].life if name in self.inits else self.cloud.lease(name)

    def watch(self, hook: Hook) -> None:
        """Have `hook` see every message that passes any process, from now on, until `unwatch`."""
        self._hooks.append(hook)
        for process, system in self.systems.items():
            system.tap = system.tap or Watcher(process, self._hooks)

    def unwatch(self, hook: Hook) -> None:
        """It sees no more."""
        if hook in self._hooks:
            self._hooks.remove(hook)

    # -- putting together --

    def _host(self, name: str) -> Host:
        setting = self.setting
        spec = HostSpec(
            name,
            zone=setting.zone(name),
            seed=setting.seed,
            egress_bytes_s=min(setting.egress_bytes_s, setting.ingress_bytes_s(name)),
            ingress_bytes_s=setting.ingress_bytes_s(name),
            is_process=setting.one_machine,
        )
        return Host(self.loop, self.net, spec)

    def _agent(self, name: str, state_dir: Path, port: int, words: list[str]) -> Main:
        listen = f"tcp://{self.hosts[name].address}:{port}"
        argv = ["python", "-m", "gleaner.nodeagent", "start", "--name", name, "--state-dir", str(state_dir)]
        argv += ["--listen", listen, "--bulk", "clear", *words]
        return command_of(argv, {}, self._site).main

    def _preemptible(self, name: str, state_dir: Path) -> Main:
        words = ["--role", "preemptible", "--join", self.head.endpoint, "--notices", "none"]
        return self._agent(name, state_dir, 0, words)  # the cloud's notices are sent by `FaultInjector`

    def _reward_host(self, name: str) -> Init:
        """One that leaves in order is replaced by a machine of the same name and address, as a group of
        machines of a cloud replaces it."""
        words = ["--role", "reward", "--join", self.head.endpoint, "--notices", "none"]
        main = self._agent(name, STATE, 0, words)
        return Init(self.hosts[name], main, self.setting.paces, lambda _: self.replace_host(name))

    def _service(self) -> Init:
        async def main(process: SimProcess) -> int:
            return await serve(process, self.setting.config, self.net, self._site(process), STATE)

        return Init(self.hosts[SCORES], main, self.setting.paces, kind=SERVICE)

    def replace_host(self, name: str) -> None:
        """Take a reward host away, and have another machine take its place."""
        self.inits[name].halt()
        self.hosts[name].power_off()
        self.inits[name].boot(REPLACED_S)

    def _site(self, process: SimProcess) -> SimHostServices:
        return SimHostServices(process, self._around)

    def _machine(self, process: SimProcess) -> SimMachine:
        def start(spec: ProcessSpec, on_exit: OnExit) -> Child:
            command = command_of(spec.argv, spec.env, self._site)
            start_s = self.setting.paces.of(command.kind)
            return self.hosts[command.node].start(
                command.name, command.main, start_s, process, on_exit, spec.env
            )

        heartbeat = process.env.get(HEARTBEAT_VARIABLE, "")
        parent = Parent.parse(heartbeat) if heartbeat else None
        return SimMachine(process.loop, start, process.meter, self._shared_cores, parent)

    def _fleet(self, process: SimProcess, system: ActorSystem, join: Join) -> FleetHosts:
        return CloudHosts(self.cloud, process, system)

    def _opened(self, process: SimProcess, system: ActorSystem) -> None:
        self.systems[process] = system
        process.loop.at_death(lambda: void(self.systems.pop(process)))
        if self._hooks:
            system.tap = Watcher(process, self._hooks)

    async def _submit(self, process: SimProcess) -> int:
        async with self._client(process) as system:
            self.client = system
            self.ended = await job_done(system, self.job)
            self._ended_s = self.loop.now_s
            self.loop.trace.note("job over", self.ended.state, self.ended.reason)
            self.loop.stop()
            await process.stop_order.wait()
        return 0

    @asynccontextmanager
    async def _client(self, process: SimProcess) -> AsyncIterator[ActorSystem]:
        location = ProcessLocation(CLIENT, process.kind, STATE, f"tcp://{process.host.address}:0")
        machine = self._machine(process)
        async with open_client(
            process, sockets(self._around, process, location), self.head, machine
        ) as system:
            yield system
