"""`StepTimes`: measurements of one step, for the planner of the next. Values only."""

import math

import msgspec

from gleaner.actors.protocol.throughput import EnginePace


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a step beyond those of Algorithm 1, for a model of it. Seconds, tokens.

    `step_s`: from the batch's begin to the step's end. `seeding_s`: as it was, prolonged or cut short.
    `update_s`: of the optimizer, part of `train_s`. `rolled_s`: from the begin to the last response.
    `start_s`: until a preemptible instance that is there has the weights. `reserved`, `preemptible`: the pace
    of one engine of each kind. `requests`, `groups`: of the batch; `limit`: longest response; `lengths`: of
    the responses of some groups; `prompt_tokens`: the mean. `surplus`: groups that were launched beside
    `groups` and did not count (a short round). `stair_s`, `half_s`: see `StepResult`.
    """

    step_s: float
    seeding_s: float
    update_s: float
    rolled_s: float
    start_s: float
    reserved: EnginePace | None
    preemptible: EnginePace | None
    requests: int
    groups: int
    limit: int
    lengths: list[list[int]]
    prompt_tokens: float
    surplus: int = 0
    stair_s: float | None = None
    half_s: float = 0.0


class RoundKinds(msgspec.Struct, frozen=True, kw_only=True):
    """The rounds of a job that has them: the kind of the measured step, that of the next one, the number of
    short rounds for each long one (inf if there is never a long one), and the groups that a short round
    launches beside those that count. spare: more groups that it launches, as so many uniform ones are
    expected. surpluses: what `surplus` may be in the next period, where the plan decides it and a period is
    over; else none. begins: the least `Plan.tail_gain` with which the next step is a short round instead;
    None: it is of the kind `ahead` in any case."""

    done: str
    ahead: str
    shorts: float
    surplus: int = 0
    spare: int = 0
    surpluses: list[int] = []
    begins: float | None = None


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one step; seconds and instances.

    `train_wait_s`: the trainer idle, waiting for samples to fill a micro-batch; seeding is no wait.
    `remote_wait_s`: remote instances idle, from the last response of each to the step's end, the mean over
    those that generated. `train_s`: the trainer computing, a second on half of its devices as half of one.
    `remote_s`: remote instances generating, such that `remote_s * mean_prem` is the time of all of them
    together. `mean_prem` (n̄): preemptible instances, averaged over the step. `next_prem` (n̂): their number
    just before the next step starts. `reserved_engines` (N_resv): rollout engines that the reserved hosts are
    divided into while they seed; 0: not known. `instance_engines`: engines of one preemptible instance; the
    paper's have one. `carried_prem`: preemptible instances that their shared devices can run side by side; 0:
    no bound. `rounds`: None for a job without rounds. `retracted`: requests whose caches preemptible
    instances gave up for others, a sum that begins anew with a restart of the LoadBalancer. `idle_s`: from
    `PlanWidth` to the step's end; None: there was none.
    """

    train_wait_s: float
    remote_wait_s: float
    train_s: float
    remote_s: float
    mean_prem: float
    next_prem: int
    reserved_engines: int = 0
    instance_engines: float = 1.0
    carried_prem: int = 0
    seen: Seen | None = None
    rounds: RoundKinds | None = None
    retracted: int = 0
    idle_s: float | None = None


def finite(value: float) -> float:
    """A measured time; a negative or undefined one (a misread clock) counts as 0."""
    return value if 0 <= value < math.inf else 0.0
