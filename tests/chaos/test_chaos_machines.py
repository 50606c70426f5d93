"""Faults of disks, clouds, engines, trainers and operators: applied, ended, and borne by a job."""

from collections.abc import Callable
from typing import cast

from gleaner.actors.cluster import job as places
from gleaner.actors.protocol.cluster import SaveState, StepTrained
from gleaner.chaos.apply_machines import begin
from gleaner.chaos.invariants.catalogue import Jury
from gleaner.chaos.invariants.facts import Fact, RecordWritten
from gleaner.chaos.machine_faults import (
    AnyMachineFault,
    BadEngine,
    BitRot,
    CloudTrouble,
    OperatorCommand,
    PowerLoss,
    SlowDisk,
    SlowTrainer,
)
from gleaner.chaos.observe_sim import Observer
from gleaner.chaos.plan import load
from gleaner.chaos.sim_run import run
from gleaner.chaos.truth_sim import SimTruth
from gleaner.sim.cluster import SimCluster
from gleaner.sim.file_mapping import FileMapping
from gleaner.sim.hosts import KILLED, SimProcess
from gleaner.sim.message_hooks import ObservedMessage
from gleaner.sim.models.clock import Immediate
from gleaner.sim.models.saved_memory import SimCopies
from gleaner.sim.run_setup import RunSetup


class FakeMachines:
    """Records the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., bool]:
        def call(*args: object, **named: object) -> bool:
            self.calls.append((name, *(arg for arg in args if not callable(arg)), *named.values()))
            return True

        return call


def applied(fault: AnyMachineFault, host: str = "reserved-1") -> tuple[bool | None, list[tuple[object, ...]]]:
    """What the fault did at once and, after the name `later`, at its end."""
    machines, ends = FakeMachines(), []

    def at(when_s: float, work: Callable[[], object]) -> None:
        ends.append((when_s, work))

    fired = begin(fault, host, machines, at, lambda: None)  # type: ignore[arg-type]  # it takes any call
    for when_s, work in ends:
        machines.calls.append(("later", when_s))
        work()
    return fired, machines.calls


def test_fault_of_a_machine_begins_and_ends() -> None:
    slow = SlowDisk(at_s=1, host="@head", factor=9, bytes_per_s=5.0, for_s=4)
    assert applied(slow) == (True, [("slow_disk", "reserved-1", 9, 5.0, 4)])
    stall = SlowDisk(at_s=1, host="@head", stall=True, for_s=4)
    assert applied(stall) == (True, [("stall_disk", "reserved-1", 4)])
    assert applied(PowerLoss(at_s=1, host="@reserved", back_s=2)) == (
        True, [("lose_power", "reserved-1", 2, False)]
    )  # fmt: skip
    assert applied(BitRot(at_s=1, host="@reserved", what="copy")) == (
        None, [("rot", "reserved-1", "copy", 0.0)]
    )  # fmt: skip
    assert applied(CloudTrouble(at_s=1, how="refuses", for_s=3), "")[1] == [
        ("refuse_hosts", True), ("later", 4.0), ("refuse_hosts", False)
    ]  # fmt: skip
    assert applied(CloudTrouble(at_s=1, how="late", for_s=3, late_s=5.0), "")[1] == [
        ("delay_hosts", 5.0), ("later", 4), ("delay_hosts", 0.0)
    ]  # fmt: skip
    assert applied(CloudTrouble(at_s=1, how="extra", for_s=3), "") == (True, [("deliver_host",)])
    assert applied(OperatorCommand(at_s=1, what="stop")) == (True, [("command", "stop", "reserved-1", 0.0)])
    assert applied(BadEngine(at_s=1, host="@preemptible", how="nan", count=2)) == (
        None, [("bad_engine", "reserved-1", "nan", 2)]
    )  # fmt: skip
    assert applied(SlowTrainer(at_s=1, factor=3, for_s=2), "") == (True, [("slow_trainer", 3, 2)])


def test_fault_of_a_host_that_is_not_there_misses() -> None:
    assert applied(PowerLoss(at_s=1, host="@reserved", back_s=2), "") == (False, [])


def test_job_survives_a_power_loss_that_takes_records_of_its_steps() -> None:
    """Seed 5: the disk of the reserved host has checkpoints, and not the records of their steps."""
    report = run(load("machines"), 5)
    assert [str(broken) for broken in report.broken] == []
    assert report.ended == "done"
    assert report.fired["power_loss"] >= 1


class Seen:
    """A jury that keeps the facts."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def see(self, fact: Fact) -> None:
        self.facts.append(fact)


def test_step_whose_copy_rots_before_its_record_counts_as_sealed_for_its_trainer_alone() -> None:
    cluster = SimCluster(RunSetup(load("machines").config, seed=3))
    host, jury = cluster.hosts["reserved-1"], Seen()
    host.power_on()
    truth = SimTruth(cluster.setting.job_model, cluster.setting.config, cluster.setting.reserved)
    observer = Observer(cluster, cast("Jury", jury), truth)
    observer.begin()

    async def idle(process: SimProcess) -> int:
        await process.stop_order.wait()
        return 0

    def records(process: SimProcess) -> int:
        """The newest whole state, by the fact that the process puts step 2 on record."""
        save = SaveState(step=2, trained=StepTrained(step=2, samples=(), root=b""))
        observer._seen(ObservedMessage(process, "out", "ask", "training/trainer", "training/state", save))
        (newest,) = [fact.newest for fact in jury.facts if isinstance(fact, RecordWritten)][-1:]
        return newest

    memory = FileMapping(host.memory, places.SHARED_MEMORY)
    copies = SimCopies(memory, places.state_copy_dir(cluster.job, host.name), Immediate())
    first = host.start("reserved-1/trainer", idle, 0.0)
    assert records(first) == -1
    copies.write(1, {"state": b"one"})
    copies.write(2, {"state": b"two"})
    assert records(first) == 2
    observer.rots(host.name)
    host.memory.corrupt(str(copies.slots[1] / "state"))
    assert records(first) == 2
    observer.rots(host.name)  # once more
    assert records(first) == 2
    first.end(KILLED)
    assert records(host.start("reserved-1/trainer", idle, 0.0)) == 1  # it has the older state
    cluster.loop.run(1.0)
    cluster.loop.close()
