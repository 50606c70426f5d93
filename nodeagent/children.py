"""Children: the processes and actors of a job on this host, under one supervisor.

Owns which role runs what, the job that they are given, the journals of its actors here, and the supervisor.
When the supervisor gives up, all children are stopped and `on_give_up` is called; the agent decides what
follows.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gleaner.actors.cluster import job as places
from gleaner.actors.names import CONTROLLER, STATE
from gleaner.actors.protocol.cluster import JobSpec
from gleaner.configs.schema import Config
from gleaner.nodeagent.engine_launcher import ENGINE, EngineLauncher
from gleaner.nodeagent.exit_codes import HOPELESS, IN_USE, UnmetRequirements
from gleaner.nodeagent.host import COMMIT_S, Bounds, ProcessLocation
from gleaner.nodeagent.host_services import ClosingTracer, HostServices, ResourceHold
from gleaner.nodeagent.launch import USUAL, Launch
from gleaner.nodeagent.numeric_threads import DEFAULTS, thread_limits
from gleaner.nodeagent.process_arguments import arguments, environment
from gleaner.nodeagent.process_trees import rank_kind, threads
from gleaner.nodeagent.restarts import RestartReporter
from gleaner.nodeagent.width_trial import WidthTrial
from gleaner.supervisor import (
    ActorSystem,
    ChildSpec,
    Intensity,
    ProcessSpec,
    Supervisor,
    SupervisorFailed,
    child,
    one_for_all,
    one_for_one,
)
from gleaner.supervisor.journal.port import Journals

PROCESSES = {
    "head": ("rollout", "reward"),
    "reserved": ("transfer", "trainer"),
    "preemptible": ("transfer", "engine"),
    "reward": ("reward-host",),
}
OWN_TRAINER = {**PROCESSES, "head": ("rollout",), "reserved": ("transfer",), "reward": ()}
"""For a job with the user's own trainer: nothing is scored or trained."""
STOP_S = 5.0  # of one child, in order; then it is killed

log = logging.getLogger("nodeagent")


class Children:
    """Children of a job on this host, if there is one.

    Args:
        system: of the node agent's process.
        location: where the node agent sits; the children join `location.head`.
        role: one of `defaults.ROLES`.
        services: what the node agent runs on.
        on_give_up: called with the `SupervisorFailed` of the children's supervisor.
        gateway: of a head, the address of its gateway, which overrides the job's settings; "": no override.
    """

    def __init__(
        self,
        system: ActorSystem,
        location: ProcessLocation,
        role: str,
        services: HostServices,
        on_give_up: Callable[[Exception], None],
        gateway: str = "",
    ) -> None:
        self._system = system
        self._location = location
        self._role = role
        self._services = services
        self._on_give_up = on_give_up
        self._gateway = gateway
        self._reporter = RestartReporter(system)
        self._tree: Supervisor | None = None
        self._journal: Journals | None = None
        self._job: JobSpec | None = None
        self._tracer: ClosingTracer | None = None
        self._memory: ResourceHold | None = None
        self._engine: EngineLauncher | None = None
        self._lock = asyncio.Lock()
        self._closed = False

    @property
    def job(self) -> JobSpec | None:
        """The job that runs here, until the last of its children has stopped."""
        return self._job

    @property
    def width(self) -> int:
        """The width that the engine here was launched with; 0: none of its own."""
        return self._engine.trial.width if self._engine is not None else 0

    @property
    def on_trial(self) -> bool:
        """Whether `look` is due from time to time."""
        return self._engine is not None and self._engine.trial.on_trial

    def names(self) -> list[str]:
        """Declared children; of a gang, its processes."""
        return [name for tree in self._trees() for name in tree.names() if tree.subtree(name) is None]

    async def run(self, job: JobSpec | None, done: str = "", width: int = 0) -> None:
        """Run the part of `job` that belongs here, and of no other. done: the run id of a job that is over.
        width: planned for the engine here, which is launched anew if it has another one; 0: no change.
        Raises Unfit, ConfigError, OSError, JournalError, CannotRun."""
        async with self._lock:
            if self._closed:
                return
            if job == self._job:
                if self._engine is not None:
                    await self._engine.ordered(width)
                return
            last = self._job
            await self._stop()
            if last is not None and last.run_id == done:
                self._services.job_is_over(replace(self._location, job=done))
            if job is not None:
                await self._start(job, width)

    async def look(self) -> None:
        """Look after an engine that is on trial (`width_trial`)."""
        async with self._lock:
            if self._engine is not None and not self._closed:
                await self._engine.look()

    async def stop(self) -> None:
        """Stop every child in order, free the job's shared memory, start nothing more."""
        self._closed = True
        if self._tree is not None:
            self._tree.halt()  # one that is just starting is not waited for
        async with self._lock:
            await self._stop()
        self._reporter.close()

    def processes(self) -> dict[str, int]:
        """The pid of each child process that runs."""
        found = [(name, tree.process(name)) for tree in self._trees() for name in tree.names()]
        return {name: process.pid for name, process in found if process is not None}

    def forget_memory(self) -> None:
        """Free the job's shared memory, after an end without order, when the children are gone."""
        if self._job is not None:
            self._services.forget_memory(self._job, self._location.node)

    def signal(self, name: str, number: int) -> int | None:
        """Send a signal to a child process; its pid, or None where no such process runs."""
        for process in (tree.process(name) for tree in self._trees()):
            if process is not None:
                process.send_signal(number)
                return process.pid
        return None

    async def _start(self, job: JobSpec, width: int) -> None:
        own = places.with_gateway(job, self._gateway) if self._gateway else job
        config = places.config_of(own)
        if lacks := await self._services.adapters.unmet(self._role, config):
            raise UnmetRequirements(lacks)
        trial = self._trial(config, width)
        bounds = Bounds.of(config)
        self._system.live_by(bounds.limits)  # the agent started before any settings were known
        if bounds.force_out:
            await self._system.force_out_journals()
        self._tracer = self._services.open_tracer(config.traces, self._location, config.limits.log_bytes)
        self._system.tracer = self._tracer
        job_file = self._services.write_job(self._location.state_dir, own)
        location = replace(self._location, job=job.run_id)
        self._journal = await self._services.open_job_journals(location, COMMIT_S)
        # Later steps are based on the weights of a step that this host has on record. Were the record lost
        # with the host's power, the step would be done again in another order, and give other weights.
        if bounds.force_out or self._role == "reserved":
            await self._journal.force_out()
        # An earlier life of this process wrote there, perhaps when this host's clock was ahead.
        self._system.incarnations.at_least(await self._journal.newest_incarnation())
        fleet = config.fleet
        intensity = Intensity(restarts=fleet.restarts, within_s=fleet.restarts_within_s)
        launch = USUAL if trial is None else trial.launch
        spec = one_for_one(
            *self._actors(job, config),
            *(self._child(kind, job_file, config, intensity, launch) for kind in self._kinds(config)),
            name=f"{self._location.node}/children",
            intensity=intensity,
        )
        self._job = job
        if self._role != "head":  # which keeps none
            self._memory = self._services.hold_memory(job, self._location.node)
        self._tree = Supervisor(
            self._system,
            spec,
            on_failure=self._gave_up,
            on_restart=self._reporter,
            journals=self._journal,
        )
        if trial is not None:
            self._engine = EngineLauncher(
                self._tree, trial, lambda launch: self._process(ENGINE, job_file, config, launch)
            )
        log.info("job %s: starting %s", job.run_id, ", ".join(self._tree.names()))
        try:
            await self._tree.start()
        except SupervisorFailed as problem:
            self._gave_up(problem)

    async def _stop(self) -> None:
        tree, self._tree, self._engine = self._tree, None, None
        job = self._job
        journal, self._journal = self._journal, None
        tracer, self._tracer = self._tracer, None
        self._system.tracer = None
        if tree is not None:
            await tree.stop()
        if journal is not None:
            await journal.close()
        if tracer is not None:
            await tracer.close()
        if job is not None:
            self._services.forget_memory(job, self._location.node)
        if self._memory is not None:
            self._memory.release()
            self._memory = None
        self._job = None

    def _gave_up(self, problem: Exception) -> None:
        self._engine = None
        self._on_give_up(problem)

    def _trial(self, config: Config, width: int) -> WidthTrial | None:
        """Of the engine here; None where the settings give it no width. Raises UnmetRequirements."""
        widths = config.engine.widths
        if self._role != "preemptible" or not widths:
            return None
        devices = self._services.adapters.inventory().devices
        trial = WidthTrial(widths, devices, width, config.engine.start_s)
        if not trial.width:
            raise UnmetRequirements(
                [
                    f"engine.widths: none of {widths} cuts the {devices} devices of this host into equal "
                    "groups; add one that does"
                ]
            )
        return trial

    def _trees(self) -> list[Supervisor]:
        """The supervisor of the children, and those below it that run."""
        if self._tree is None:
            return []
        below = [self._tree.subtree(name) for name in self._tree.names()]
        return [self._tree, *(tree for tree in below if tree is not None)]

    def _kinds(self, config: Config) -> tuple[str, ...]:
        """The processes of this role; a judge, a gateway, a planner of rewards and the user's own actors
        where the settings name them."""
        kinds = (OWN_TRAINER if config.training.backend == "own" else PROCESSES)[self._role]
        if self._role == "reserved" and "trainer" in kinds and config.serves_judge:
            return (*kinds, "judge")
        if self._role != "head":
            return kinds
        wanted = {
            "gateway": config.gateway.listen,
            "own": config.job.actors,
            "reward-planner": "reward" in kinds and config.reward.planner.kind != "static",
        }
        return (*kinds, *(kind for kind, asked in wanted.items() if asked))

    def _child(
        self, kind: str, job_file: Path, config: Config, intensity: Intensity, launch: Launch
    ) -> ChildSpec:
        """The spec of one process; of a trainer with several processes, of all of them, which only run
        together."""
        own = self._process(kind, job_file, config, launch if kind == ENGINE else USUAL)
        if kind != "trainer" or config.training.processes == 1:
            return own
        # The trainer is the last to start and the first to stop: it gives the orders.
        kinds = [rank_kind(number) for number in range(1, config.training.processes)]
        ranks = [self._process(kind, job_file, config) for kind in kinds]
        name = f"{self._location.node}/gang"
        return child(name, one_for_all(*ranks, own, name=name, intensity=intensity))

    def _process(self, kind: str, job_file: Path, config: Config, launch: Launch = USUAL) -> ChildSpec:
        location = self._location
        spec = ProcessSpec(
            arguments(kind, location, job_file, launch),
            location.state_dir / "logs" / f"{kind}.out",
            {**thread_limits(threads(kind, config)), **environment(location)},
            HOPELESS | {IN_USE},  # in use is a port that the settings name, the gateway's; others take any
            places.health_of(config),
            defaults=DEFAULTS,
        )
        restart = "temporary" if launch.trial else "permanent"
        return child(kind, spec, shutdown_s=STOP_S, restart=restart)

    def _actors(self, job: JobSpec, config: Config) -> list[ChildSpec]:
        """The actors of a role that live in the node agent's own process."""
        adapters = self._services.adapters
        if self._role == "head":
            from gleaner.actors.training.controller import RLController

            history = Path(job.run_dir) / "history.jsonl"
            return [
                child(
                    CONTROLLER,
                    lambda: RLController(job, config, adapters.history(history)),
                    restart="transient",
                )
            ]
        if self._role == "reserved" and config.training.backend != "own":
            from gleaner.actors.cluster.state_manager import StateManager

            copies, durable = places.state_copy_dir(job, self._location.node), places.checkpoint_dir(job)
            keep = config.training.checkpoint_keep
            return [
                child(
                    STATE,
                    lambda: StateManager(adapters.host_copies(copies), adapters.checkpoints(durable, keep)),
                )
            ]
        return []
