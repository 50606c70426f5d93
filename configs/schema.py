"""Config: every setting of the main job, one frozen struct a section.

Owns the order of the sections and the rules between settings of two of them. The sections are in
`gleaner.configs.sections`, which declares and documents each setting; they are imported from here. Does not
read files (`gleaner.configs.load`) and does nothing with the values.
"""

from collections.abc import Sequence

from gleaner.configs.sections.fleet import Fleet, Liveness, Prices
from gleaner.configs.sections.job import Job, Model, WarmStart
from gleaner.configs.sections.judge import Judge
from gleaner.configs.sections.network import Gateway, Network
from gleaner.configs.sections.operation import Ablation, Limits, Loggers, Traces
from gleaner.configs.sections.rewards import (
    Function,
    Http,
    Jobs,
    Planner,
    Reward,
    Sandbox,
    Scores,
    Share,
    Stages,
    StageWorkers,
    Timeouts,
)
from gleaner.configs.sections.rollout import Engine, Rollout, Seeding
from gleaner.configs.sections.rounds import Rounds
from gleaner.configs.sections.tasks import HELDOUT_PROBLEMS, TRAIN_PROBLEMS, JudgePart, Task
from gleaner.configs.sections.training import Training
from gleaner.configs.sections.values import Section
from gleaner.configs.sections.weights import Weights

__all__ = [
    "HELDOUT_PROBLEMS",
    "TRAIN_PROBLEMS",
    "Ablation",
    "Config",
    "Engine",
    "Fleet",
    "Function",
    "Gateway",
    "Http",
    "Job",
    "Jobs",
    "Judge",
    "JudgePart",
    "Limits",
    "Liveness",
    "Loggers",
    "Model",
    "Network",
    "Planner",
    "Prices",
    "Reward",
    "Rollout",
    "Rounds",
    "Sandbox",
    "Scores",
    "Section",
    "Seeding",
    "Share",
    "StageWorkers",
    "Stages",
    "Task",
    "Timeouts",
    "Traces",
    "Training",
    "WarmStart",
    "Weights",
    "shares_of",
]


def shares_of(tasks: Sequence[Task], *, heldout: bool = False) -> list[float]:
    """Share of each task in the problems of a job; only their ratios count."""
    if heldout:
        return [float(task.heldout_problems or HELDOUT_PROBLEMS) for task in tasks]
    return [task.share or float(task.train_problems or TRAIN_PROBLEMS) for task in tasks]


class Config(Section, frozen=True, kw_only=True):
    """All settings of one main job, resolved."""

    job: Job = Job()
    model: Model = Model()
    task: tuple[Task, ...] = (Task(),)
    rollout: Rollout = Rollout()
    rounds: Rounds = Rounds()
    engine: Engine = Engine()
    training: Training = Training()
    seeding: Seeding = Seeding()
    fleet: Fleet = Fleet()
    weights: Weights = Weights()
    reward: Reward = Reward()
    liveness: Liveness = Liveness()
    prices: Prices = Prices()
    network: Network = Network()
    limits: Limits = Limits()
    traces: Traces = Traces()
    gateway: Gateway = Gateway()
    ablation: Ablation = Ablation()
    loggers: Loggers = Loggers()

    @property
    def train_problems(self) -> int:
        """Training problems of all tasks."""
        return sum(task.train_problems or TRAIN_PROBLEMS for task in self.task)

    @property
    def heldout_problems(self) -> int:
        """Held-out problems of all tasks."""
        return sum(task.heldout_problems or HELDOUT_PROBLEMS for task in self.task)

    def shares(self, *, heldout: bool = False) -> list[float]:
        """Share of each task in the problems of the job; only their ratios count."""
        return shares_of(self.task, heldout=heldout)

    def __post_init__(self) -> None:
        if not self.task:
            raise ValueError("task: expected at least one")
        names = [task.name for task in self.task]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"task: the name {twice[0]} is there twice; give each task its own")
        if len({task.share > 0 for task in self.task}) > 1:
            raise ValueError("task: expected a share above 0 in every task or in none")
        self._check_judge()
        if self.rounds.on:
            self._check_rounds()
        if self.seeding.stairs != "off":
            self._check_stairs()
        if self.training.micro_batch_groups > self.rollout.prompts:
            raise ValueError(
                f"training.micro_batch_groups: expected at most rollout.prompts ({self.rollout.prompts}), "
                f"got {self.training.micro_batch_groups}"
            )
        if self.job.exact and self.rollout.staleness:
            raise ValueError(
                "rollout.staleness: expected 0 where job.exact is set, got "
                f"{self.rollout.staleness}: when weights change in the middle of a response is no function "
                "of the seed"
            )
        if self.engine.width_plan != "off":
            self._check_width_plan()
        if self.engine.in_flight == "kept":
            if not self.rollout.staleness and self.training.backend != "own":
                raise ValueError(
                    "engine.in_flight: expected handed-over where rollout.staleness is 0, got kept: no token "
                    "may be of other weights than its response began with; set rollout.staleness above 0"
                )
            if self.engine.drain_s:
                raise ValueError(
                    "engine.drain_s: expected 0 where engine.in_flight is kept, got "
                    f"{self.engine.drain_s:g}: what stays where it is needs no time to end"
                )
        if self.job.exact and self.rollout.over_sampling > 1:
            raise ValueError(
                "rollout.over_sampling: expected 1 where job.exact is set: which groups end first, and so "
                f"are trained on, is a matter of time; got {self.rollout.over_sampling:g}"
            )
        if self.job.exact and self.engine.kind != "builtin":
            raise ValueError(
                f"engine.kind: expected builtin where job.exact is set, got {self.engine.kind}: its tokens "
                "depend on what it decodes beside them"
            )
        if self.job.exact and self.reward.timeouts.adaptive:
            raise ValueError(
                "reward.timeouts.adaptive: expected false where job.exact is set: the limit of a program "
                "depends on which responses were scored before it"
            )
        for section, threads in (("engine", self.engine.threads), ("training", self.training.threads)):
            if self.job.exact and threads != 1:
                raise ValueError(f"{section}.threads: expected 1 where job.exact is set, got {threads}")

    def _check_stairs(self) -> None:
        """The trainer can be halved, and nothing follows from the halves. Raises ValueError."""
        stairs, training = self.seeding.stairs, self.training
        if training.backend != "fsdp2" or training.processes % 2:
            raise ValueError(
                f"seeding.stairs: expected off, got {stairs}: half of a trainer of {training.processes} "
                f'process(es) with training.backend = "{training.backend}" is not whole; set backend = '
                '"fsdp2" and an even number of training.processes'
            )
        if self.job.exact:
            raise ValueError(
                f"seeding.stairs: expected off where job.exact is set, got {stairs}: the order in which the "
                "halves add up their gradients is a matter of time"
            )
        if stairs == "model" and self.seeding.controller != "model":
            raise ValueError(
                "seeding.controller: expected model where seeding.stairs is model, got "
                f"{self.seeding.controller}: no other controller predicts a step"
            )

    def _check_width_plan(self) -> None:
        """Widths change between steps, by plans of steps. Raises ValueError."""
        plan = self.engine.width_plan
        if self.training.backend == "own":
            raise ValueError(
                f"engine.width_plan: expected off where training.backend is own, got {plan}: no step "
                "is planned"
            )
        if self.rollout.staleness:
            raise ValueError(
                f"rollout.staleness: expected 0 where engine.width_plan is {plan}, got "
                f"{self.rollout.staleness}: there is no time between steps in which no engine has requests"
            )
        if plan == "model" and self.seeding.controller != "model":
            raise ValueError(
                f"seeding.controller: expected model where engine.width_plan is model, got "
                f"{self.seeding.controller}: no other controller predicts a step"
            )

    def _check_rounds(self) -> None:
        """Rounds go together with the other sections. Raises ValueError."""
        rounds, rollout = self.rounds, self.rollout
        if rounds.launched(rollout.prompts, rollout.samples) == (rollout.prompts, rollout.samples):
            raise ValueError(
                f"rounds.prompts_factor: {rounds.prompts_factor:g} times rollout.prompts ({rollout.prompts}) "
                "launches nothing more than counts, so no step has a round: raise either, or set "
                "rounds.mode = off"
            )
        if rollout.over_sampling > 1:
            raise ValueError(
                "rollout.over_sampling: expected 1 where rounds.mode is not off, got "
                f"{rollout.over_sampling:g}: rounds.prompts_factor is what a short round launches more"
            )
        if self.training.backend == "own":
            raise ValueError(
                "rounds.mode: expected off where training.backend is own: the trainer elsewhere decides what "
                "it trains on"
            )
        if rounds.history and (rounds.seeds != "own" or rounds.samples_factor > 1):
            raise ValueError(
                "rounds.history: expected false where rounds.seeds is new or rounds.samples_factor is above "
                "1: the reported bias would leave out what is deferred without a launch"
            )
        if rounds.mode == "auto" and self.job.exact:
            raise ValueError(
                "rounds.mode: expected tail or off where job.exact is set, got auto: it follows times"
            )
        predicts = "mode is auto" if rounds.mode == "auto" else ""
        predicts = predicts or ("prompts_plan is model" if rounds.prompts_plan == "model" else "")
        if predicts and self.seeding.controller != "model":
            raise ValueError(
                f"seeding.controller: expected model where rounds.{predicts}, got "
                f"{self.seeding.controller}: no other controller predicts a step"
            )
        if rounds.prompts_plan == "model" and self.job.exact:
            raise ValueError(
                "rounds.prompts_plan: expected fixed where job.exact is set, got model: it follows times"
            )
        if self.job.exact and rounds.race == "time":
            raise ValueError(
                "rounds.race: expected tokens where job.exact is set, got time: which responses end first "
                "is a matter of machines"
            )
        if self.job.exact and rollout.request_deadline_s:
            raise ValueError(
                "rollout.request_deadline_s: expected 0 where job.exact is set and rounds.mode is not off, "
                f"got {rollout.request_deadline_s:g}: which responses are short would follow from their time"
            )

    @property
    def serves_judge(self) -> bool:
        """Whether the job has a judge of its own beside its engine."""
        judged = any(task.verifier == "judge" or task.judge.weight for task in self.task)
        return judged and self.reward.judge.place == "colocated" and not self.reward.share.with_

    def _check_judge(self) -> None:
        """A task with a judge has one, and no more time for it than workers have. Raises ValueError."""
        judge = self.reward.judge
        for task in self.task:
            if task.verifier != "judge" and not task.judge.weight:
                continue
            alone = task.verifier == "judge"
            own_place = alone and task.params and judge.used and judge.place != "colocated"
            if judge.lacking and not own_place:
                raise ValueError(f"reward.judge.{judge.lacking}")
            own_s = task.params.get("deadline_s") if alone else None
            if isinstance(own_s, int | float) and own_s > judge.deadline_s:
                raise ValueError(
                    f"task {task.name}: params.deadline_s: expected at most reward.judge.deadline_s "
                    f"({judge.deadline_s:g}), for which workers have time; raise that one, got {own_s:g}"
                )
