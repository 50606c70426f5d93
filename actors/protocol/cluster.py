"""Messages to the Scheduler, the StateManager, the Provider and the node agents."""

from typing import Annotated, Literal

import msgspec

from gleaner.actors.protocol.step_times import StepTimes
from gleaner.supervisor import Address, Message


class TrainedSample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample that entered an optimizer step: its request, token count and CRC-32 of its tokens (u32,
    raw)."""

    request: str
    count: int
    crc: int


class StepTrained(Message, frozen=True):
    """Journaled once a step: which samples made version `step` out of version `step - 1`, and how.

    `micro_batches`: group numbers in the order in which they were trained. The same ones in the same order
    give the same bits, so a step that is lost with its host can be done again with the same result.
    """

    step: int
    samples: tuple[TrainedSample, ...]
    root: bytes
    micro_batches: tuple[tuple[int, ...], ...] = ()


class RecordOf(Message, frozen=True):
    """To the StateManager: was `step` trained before, and how?"""

    step: int


class RecordIs(Message, frozen=True):
    """The newest record of a step; None for one that was never done (or long ago)."""

    record: StepTrained | None


class SaveState(Message, frozen=True):
    """To the StateManager: make the sealed host copy of `step` durable. Repeating it changes nothing."""

    step: int
    trained: StepTrained | None


class StateSaved(Message, frozen=True):
    """To the controller: the checkpoint of `step` is durable."""

    step: int
    path: str


class LatestState(Message, frozen=True):
    """To the StateManager: requests the newest whole state."""


class StateIs(Message, frozen=True):
    """`step` finished steps are in the directory `path` (a host copy or a checkpoint); "" when there is none.

    `durable_step` is the newest one on disk, `kept_step` the one before it that is kept for the case that the
    newest is damaged (the newest itself where it is alone); -1 for none.
    """

    step: int
    path: str
    durable_step: int
    kept_step: int


class PlanNext(Message, frozen=True):
    """To the Scheduler: requests the plan of `step`.

    `times`: measurements of the previous step; None: nothing new. `reserved_engines`: of the reserved hosts,
    0 if not known yet.
    """

    step: int
    times: StepTimes | None
    reserved_engines: int = 0


class PlanWidth(Message, frozen=True):
    """To the Scheduler: decide the width of the engines for `step` now. The batch of the step before is
    whole, so no instance has a request until the trainer has updated the weights. The same step again gets
    the same width.

    `times`: measurements of the step before, which is not over: without its update, and with the training of
    all groups as estimated from those that are trained.
    """

    step: int
    times: StepTimes


class WidthPlanned(Message, frozen=True):
    """The answer. `changed`: engines are relaunched for it, so they are away for a while. `decided`: False
    where measurements are missing; then the plan of the step decides."""

    width: int
    changed: bool
    decided: bool


class Plan(Message, frozen=True):
    """The settings of the next step; `predicted_s`: its predicted duration, 0 without a prediction.
    `tail_gain`: the predicted share of the time of a step that is rolled out whole by which a period of short
    and long rounds is shorter a step, where they have not begun with more long groups than the mean
    (`round_surplus`); None without a prediction. `stair_s`: see `TrainStep`. `width`: tensor-parallel width
    of the engines of preemptible hosts; 0: as the settings have it. `tail_surplus`: groups that a short round
    of the period that begins launches beside those that count; None: as before."""

    t_seed_s: float
    n_prem: int
    predicted_s: float = 0.0
    tail_gain: float | None = None
    stair_s: float | None = None
    width: int = 0
    tail_surplus: int | None = None


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of a host. core_groups: groups of its cores, over which SGLang spreads a model without
    GPUs."""

    hostname: str
    cores: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    core_groups: int = 1

    @property
    def devices(self) -> int:
        """Devices over which engines spread a model: its GPUs, or its groups of cores."""
        return len(self.gpus) or self.core_groups


RunId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")]
"""It names folders on every host, hence the narrow alphabet."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The job that runs: its folder on the head's host, its resolved settings as TOML, its names. model_dir:
    "" for a reward service, whose hosts score texts."""

    run_id: RunId
    run_dir: str
    model_dir: str
    config: str


class SubmitJob(Message, frozen=True):
    """To the Scheduler, from rlctl: run this job. The same run again changes nothing."""

    job: JobSpec


class JobStatus(Message, frozen=True):
    """Asks for the state of the job."""


class JobIs(Message, frozen=True):
    """`state`: none, running, done or failed; `reason`: why it failed, `cause` as in `JobEnded`."""

    state: str
    run_id: str = ""
    reason: str = ""
    cause: str = ""


UNSERVED = "unserved"
UNSCORED = "unscored"


class JobEnded(Message, frozen=True):
    """From the controller, or a supervisor that gave up. `cause` names a failure that programs act on:
    `UNSERVED` if no preemptible instance has served although the job requires one, `UNSCORED` if the verifier
    stayed sick; else ""."""

    ok: bool
    reason: str = ""
    cause: str = ""


class NodeHello(Message, frozen=True):
    """From a node agent, periodically and after a change: a sign of life. `state`: up, draining or leaving.
    `run_id`: of the job whose part runs here or is being stopped, "" for none. `width`: that its engine was
    started with; 0: none of its own."""

    node: str
    role: str
    agent: Address
    inventory: Inventory
    state: str = "up"
    run_id: str = ""
    width: int = 0


class NodeWork(Message, frozen=True):
    """The reply: the job of which the host runs a part, if there is one, and the time of the next hello.
    `done`: the run id of the last job, if that one is over and cannot be resumed. `width`: the planned
    tensor-parallel width of its engine; 0: as it is, or as the settings have it."""

    job: JobSpec | None
    hello_s: float = 1.0
    done: str = ""
    width: int = 0


class SayHello(Message, frozen=True):
    """To a node agent: send a hello now, because there is news. A lost one costs only time."""


class PreemptionNotice(Message, frozen=True):
    """To a node agent: this host goes away `deadline_s` from now. It drains, leaves and exits by then."""

    deadline_s: float


class CloudNotice(Message, frozen=True):
    """To a node agent: the cloud's present information on this host. The newest counts, repeating it changes
    nothing.

    `notice`: it goes away `deadline_s` from now; it drains, and leaves by then. `hint`: it may go away; it
    gets no new requests, and finishes its present ones. `none`: it stays, in spite of earlier messages.
    `source` and `why`: for display. `acknowledges`: the cloud is notified when the host is empty
    (`HandedOver` to the sender of this), so it need not wait for the end.
    """

    kind: Literal["none", "hint", "notice"]
    deadline_s: float = 0.0
    source: str = ""
    why: str = ""
    acknowledges: bool = False


class HandedOver(Message, frozen=True):
    """From a node agent to the watcher of the cloud's notices: this host is empty and has left the
    cluster.
    """


class StopNode(Message, frozen=True):
    """To a node agent: stop the children in order, send the goodbye, exit."""


class KillChild(Message, frozen=True):
    """To a node agent: send `signal` to the child process `child` (rollout, reward, trainer, ...)."""

    child: str
    signal: int = 9


class StartFleet(Message, frozen=True):
    """From the Scheduler to the Provider: this job needs hosts. Repeating it changes nothing.

    Hosts that the trace has at its start (or where it stopped) are started at once; its clock waits for
    `StartTrace`.
    """

    job: JobSpec


class StartTrace(Message, frozen=True):
    """From the controller to the Provider, when it begins to train (or goes on): the trace's clock runs."""


class StopFleet(Message, frozen=True):
    """From the Scheduler to the Provider: the job has ended, stop its hosts."""


class SetFleet(Message, frozen=True):
    """To the Provider: at most `n_prem` preemptible hosts from now on."""

    n_prem: int


class NodeSeen(Message, frozen=True):
    """To the controller, from the Scheduler alone: a host joined, left, was killed, noticed, drained, spared,
    or is unfit.

    A node agent reports to the Scheduler: its notice, its drain, a withdrawn notice (spared), and a missing
    requirement of its part of the job (unfit, named in `cause`). The Scheduler detects the other three
    itself. `devices`: those of its `Inventory`.
    """

    node: str
    role: str
    event: Literal["joined", "left", "killed", "noticed", "drained", "spared", "unfit"]
    devices: int = 1
    cause: str = ""


class WhoIsUp(Message, frozen=True):
    """To the Scheduler, from a controller that starts: requests the hosts that are up."""


class HostsUp(Message, frozen=True):
    """Role by host, without the head's own host. `boot` identifies the life of the head. `devices`: of a
    host, if it has more than one."""

    boot: int
    roles: dict[str, str]
    devices: dict[str, int] = {}


class RestartSeen(Message, frozen=True):
    """To the controller: a supervisor restarted a child: an actor, by its name, or a process, as
    `<host>/<kind>`. `incarnation` counts its lives, the first is 1.
    """

    actor: str
    cause: str
    incarnation: int
