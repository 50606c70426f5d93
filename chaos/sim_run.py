"""Simulated run under faults: a cluster, a schedule, a jury, and the results.

Owns the assembly and the period at which the jury is asked whether to continue. One seed and one schedule
give one history.
"""

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec

from gleaner.actors.training.records import Step
from gleaner.chaos.apply_sim import Faults
from gleaner.chaos.availability import as_trace
from gleaner.chaos.callers import Caller
from gleaner.chaos.deliveries import deliveries
from gleaner.chaos.faults import STAY, AnyFault
from gleaner.chaos.gateway_clients import GatewayClient
from gleaner.chaos.invariants.catalogue import jury_of
from gleaner.chaos.invariants.check import Found
from gleaner.chaos.invariants.facts import RunEnd
from gleaner.chaos.invariants.world_checks import HOSTS_END_S
from gleaner.chaos.machine_faults import CloudTrouble
from gleaner.chaos.observe_sim import Observer, acknowledgements
from gleaner.chaos.plan import Loaded
from gleaner.chaos.schedule import Schedule
from gleaner.chaos.service_sim import ServiceObserver
from gleaner.chaos.story import line_of, line_of_fault, line_of_found, line_of_note
from gleaner.chaos.story_filter import StoryFilter
from gleaner.chaos.stream_wires import stream_wires
from gleaner.chaos.tally import Broken, RunReport
from gleaner.chaos.truth_sim import SimTruth
from gleaner.chaos.world_sim import WorldObserver
from gleaner.configs.schema import Config
from gleaner.rlctl.simulated_evidence import evidence
from gleaner.sim.cluster import SimCluster
from gleaner.sim.fault_injector import FaultInjector
from gleaner.sim.loop import SpinsForever
from gleaner.sim.machine_injector import MachineInjector
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.job_model import JobModel
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.scorer import MEDIAN_S, ScorerLaw
from gleaner.sim.models.shapes import model_shape
from gleaner.sim.run_setup import RunSetup

STRIDE_S = 1.0
"""Virtual seconds between two questions whether the job is over."""
TRACE_NAME = "drawn"
RESERVED_RIG, PREEMPTIBLE_RIG = HostDevices("t4"), HostDevices("cpu")
TOKEN_SCALE = 8
"""Tokens of the model per message token: decoding one message token takes as long as eight."""
FRAME_ROWS = (1, 2, 3, 2)
"""Rows of a request in a frame, by seed: with one, a frame can be cut off between any two tokens; with more,
within a frame too, and a run costs a quarter less."""
LENGTHS = LengthLaw(median=60.0 * TOKEN_SCALE, sigma=0.6, correlation=0.5)
"""Long enough that most requests meet a fault, with a tail up to the job's limit."""


def run(
    loaded: Loaded,
    seed: int,
    schedule: Schedule | None = None,
    *,
    tell: Callable[[str], None] | None = None,
    stop_at: str | None = None,
    shown: StoryFilter | None = None,
) -> RunReport:
    """Run a job under the faults of its seed, or under `schedule`. tell: receives the story of the run, line
    by line (`gleaner.chaos.story`). stop_at: end at the first violation of that check, "" of any; None
    continues to the end of the job. shown: the part of the story that `tell` receives; None: all."""
    drawn = schedule if schedule is not None else loaded.schedule(seed)
    setting = setting_of(loaded, seed, drawn)

    def noted(note: str) -> None:
        line = line_of_note(note)
        if line and tell is not None and (shown is None or shown.shows_note(line)):
            tell(line)

    cluster = SimCluster(setting, noted if tell is not None else None)
    config = setting.config
    truth = SimTruth(setting.job_model, config, setting.reserved)
    rollout = config.rollout
    jury = jury_of(truth.of, rollout.staleness, config.train_problems, rollout.max_pending, truth, config)
    observer = Observer(cluster, jury, truth, drawn.faults)
    injector = FaultInjector(cluster)
    machines = MachineInjector(
        cluster, injector, random.Random(f"{seed}/machines"), observer.commanded, observer.rots
    )
    faults = Faults(injector, drawn.faults, machines)
    world = WorldObserver(cluster, jury.see, faults.resolve)
    service = ServiceObserver(cluster, jury.see, world.struck_s)
    reached: list[Found] = []

    def found(one: Found) -> None:
        if tell is not None:
            tell(line_of_found(one))
        if stop_at in ("", one.check):
            reached.append(one)
            cluster.loop.stop()  # when everything that can run at this instant has run

    def struck(fault: AnyFault, how: str) -> None:
        world.struck(fault, how)
        if tell is not None:
            tell(line_of_fault(cluster.loop.now_s, fault, how))

    jury.on_found = found
    faults.on_strike = struck
    if tell is not None:
        jury.on_fact = lambda fact: tell(line_of(fact)) if shown is None or shown.shows(fact) else None
    spins = ""
    streams = stream_wires(jury.see, lambda: cluster.loop.now_s)
    acknowledged, handed_up = acknowledgements(observer.acknowledged), deliveries(observer.handed_up)
    with _uncollected(), acknowledged, handed_up, streams:
        observer.begin()
        world.begin()
        service.begin()
        faults.arm()
        cluster.begin()
        for number in range(1, loaded.campaign.terrain.callers + 1):
            name = f"caller-{number}"
            rng = random.Random(f"{seed}/{name}")
            cluster.call(name, Caller(name, config, rng, observer.called, lambda: cluster.loop.now_s).run)
        for number in range(1, loaded.campaign.terrain.clients + 1):
            name = f"client-{number}"
            rng = random.Random(f"{seed}/{name}")
            cluster.start_program(name, GatewayClient(name, cluster, rng, observer.called).run)
        try:
            over = False
            while not over and cluster.loop.now_s < setting.deadline_s:
                over = cluster.advance(min(cluster.loop.now_s + STRIDE_S, setting.deadline_s))
                if reached:
                    break
            if over:
                world.settle(HOSTS_END_S)
        except SpinsForever as problem:
            spins = str(problem)
        observer.end()
        stopped = bool(spins) or bool(reached)
        outcome = cluster.finish(stopped=stopped)
    if not stopped:
        quiet_s = max(outcome.virtual_s - drawn.over_s, 0.0)
        jury.close(
            evidence(outcome),
            RunEnd(
                ended=outcome.complete,
                virtual_s=outcome.virtual_s,
                deadline_s=setting.deadline_s,
                reason=outcome.reason,
                quiet_s=quiet_s,
                waits=observer.waits,
                history=outcome.history,
                lost_commits=any(host.disk.lost_commits for host in cluster.hosts.values()),
            ),
        )
    broken = [Broken(check=found.check, at_s=found.at_s, text=found.text) for found in jury.found]
    if spins:
        broken.insert(0, Broken(check="I8", at_s=cluster.loop.now_s, text=spins))
    if observer.recoveries.stays:
        faults.fired[STAY] = observer.recoveries.stays
    return RunReport(
        seed=seed,
        trace_hash=outcome.trace_hash,
        ended=outcome.ended,
        virtual_s=outcome.virtual_s,
        wall_s=outcome.wall_s,
        steps=sum(isinstance(record, Step) for record in outcome.history),
        fired=dict(sorted(faults.fired.items())),
        shapes=dict(sorted(faults.shapes.items())),
        missed=dict(sorted(faults.missed.items())),
        counts=observer.recoveries.counts(),
        broken=tuple(broken),
    )


@contextmanager
def _uncollected() -> Iterator[None]:
    """Within this context, cyclic garbage is not collected: each stride would end in a collection of all that
    the run still needs."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def setting_of(loaded: Loaded, seed: int, schedule: Schedule) -> RunSetup:
    """Setting of the run of this seed."""
    campaign = loaded.campaign
    trace = as_trace(schedule.faults, TRACE_NAME)
    config: Config = loaded.config_of(seed)
    fleet = msgspec.structs.replace(
        config.fleet,
        trace=TRACE_NAME if trace is not None else "",
        n_prem_max=campaign.terrain.preemptible,
    )
    return RunSetup(
        job_model=job_model(seed, campaign.verifier_s),
        reserved=replace(RESERVED_RIG, devices=1 if config.seeding.stairs == "off" else 2),
        preemptible=preemptible_rig(config),
        config=msgspec.structs.replace(config, fleet=fleet),
        seed=seed,
        trace=trace,
        deadline_s=campaign.deadline_s,
        zones=campaign.terrain.zones or ("a",),
        order_seed=schedule.order,
        rewards=campaign.terrain.rewards,
        spares=int(any(isinstance(fault, CloudTrouble) for fault in schedule.faults)),
    )


def preemptible_rig(config: Config) -> HostDevices:
    """The rig of a preemptible host: as many devices as the widest of the engines in the settings."""
    return replace(PREEMPTIBLE_RIG, devices=max(config.engine.widths, default=1))


def job_model(seed: int, verifier_s: float = MEDIAN_S) -> JobModel:
    """A small model on slow machines: a step takes several virtual seconds and few events, so faults meet it
    in the middle of its work. Its tokens depend on all that is asked for, so that a wrong version, prompt or
    parameter is seen in them. The seed decides how many rows of a request are in a frame. verifier_s: median
    time of one score."""
    return JobModel(
        model_shape("qwen3-0_6b"),
        LENGTHS,
        scorer=ScorerLaw(median_s=verifier_s),
        token_scale=TOKEN_SCALE,
        frame_rows=FRAME_ROWS[seed % len(FRAME_ROWS)],
        tokens_follow_inputs=True,
    )
