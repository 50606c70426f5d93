"""`HistoryRecorder`: the controller's records for the history of a run.

The records are of steps, evaluations, fleet samples, hosts and restarts.

Owns the run's clock (seconds since it began, continued over a resume). Which hosts are up is in the history.
"""

import dataclasses
from collections.abc import Sequence
from statistics import pvariance
from typing import Literal

import msgspec

from gleaner.actors.protocol.cluster import HostsUp, NodeSeen, Plan, RestartSeen
from gleaner.actors.protocol.critical_path import CriticalPath
from gleaner.actors.protocol.reward import Sickness
from gleaner.actors.protocol.rollout import RolloutFigures
from gleaner.actors.protocol.training import StepResult
from gleaner.actors.training import records
from gleaner.actors.training.causes import in_a_line
from gleaner.actors.training.first_instance import FirstInstance
from gleaner.actors.training.records import PhaseName
from gleaner.actors.training.round_end import RoundEnd
from gleaner.actors.training.step_clock import StepSeconds
from gleaner.actors.training.step_path import stages_of
from gleaner.configs.schema import Config, Prices


class HistoryRecorder:
    """Writes records; every `now_s` is the actor's clock.

    Args:
        writer: the run's history, open for appending.
        now_s: the moment that continues the history's last one.
    """

    def __init__(self, writer: records.History, now_s: float) -> None:
        self._writer = writer
        self._begin_s = now_s - writer.last_t_s
        self._tokens: int | None = None
        self._sampled_s = 0.0
        self._phase = ""

    @property
    def served(self) -> bool:
        """Whether a preemptible instance has served since the run last began."""
        return self._writer.served

    @property
    def last_step(self) -> int:
        """The last step on record; 0 for none. A controller that was killed between the record and its own
        note of it does that step again."""
        return self._writer.last_step

    @property
    def step_began_s(self) -> float | None:
        """When the current step began, by the actor's clock: at the end of the previous one, or of the first
        evaluation. None before that."""
        began_s = self._writer.step_began_s
        return None if began_s is None else began_s + self._begin_s

    def begin(self, run_id: str, config: Config, up: HostsUp, now_s: float) -> None:
        """The run begins, or resumes; `up`: the hosts that are up already."""
        self._writer.write(
            records.Run(
                t_s=self._t_s(now_s),
                run_id=run_id,
                seed=config.job.seed,
                steps=config.job.steps,
                config=msgspec.to_builtins(config),
            )
        )
        self.resume(up, now_s)

    def resume(self, up: HostsUp, now_s: float) -> None:
        """Record the hosts that joined or ended while no controller recorded it; `up`: those that are up."""
        for node, role in self._writer.hosts.items():
            if node not in up.roles:
                self.node(NodeSeen(node=node, role=role, event="killed"), now_s)
        for node, role in up.roles.items():
            devices = up.devices.get(node, 1)
            self.node(NodeSeen(node=node, role=role, event="joined", devices=devices), now_s)

    def step(
        self,
        result: StepResult,
        plan: Plan,
        spent: StepSeconds,
        now_s: float,
        predicted_s: float | None = None,
    ) -> None:
        """A step ended, the one after `last_step`; `spent`: its time by use; `plan`: of the next step;
        `predicted_s`: the prediction for this one. An earlier step is on record and is not recorded again."""
        if result.step <= self.last_step:
            return
        self._writer.write(
            records.Step(
                t_s=self._t_s(now_s),
                step=result.step,
                reward=result.reward,
                samples=result.samples,
                unscored=result.unscored,
                tokens=result.tokens,
                seeding_s=spent.seeding_s,
                waiting_s=spent.waiting_s,
                training_s=spent.training_s,
                weights_s=spent.weights_s,
                recovery_s=spent.recovery_s,
                evaluation_s=spent.evaluation_s,
                step_s=spent.step_s,
                t_seed_s=plan.t_seed_s,
                n_prem=plan.n_prem,
                width=plan.width,
                predicted_s=predicted_s,
                grad_norm=records.finite(result.grad_norm),
                loss=records.finite(result.loss),
                staleness_mean=result.staleness_mean,
                staleness_max=result.staleness_max,
                drift=records.finite(result.drift),
                clipped=result.clipped,
                truncated=result.truncated,
                stair_s=result.stair_s,
                half_s=result.half_s,
            )
        )

    def round(self, step: int, end: RoundEnd, now_s: float) -> None:
        """Record the round of the last recorded step."""
        self._writer.write(records.Round(t_s=self._t_s(now_s), step=step, **dataclasses.asdict(end)))

    def path(self, result: StepResult, path: CriticalPath, spent: StepSeconds, now_s: float) -> None:
        """Record the critical path of the last recorded step."""
        self._writer.write(
            records.StepPath(
                t_s=self._t_s(now_s),
                step=result.step,
                request=path.request,
                instance=path.instance,
                sends=path.sends,
                stages=stages_of(path, result, spent),
                scoring_s=path.scoring_s,
            )
        )

    def evaluation(
        self,
        when: Literal["first", "during", "last"],
        step: int,
        rewards: Sequence[float],
        tasks: dict[str, float | None],
        now_s: float,
    ) -> None:
        """Record the rewards of held-out problems whose samples have a score, and the mean by task."""
        self._writer.write(
            records.Eval(
                t_s=self._t_s(now_s),
                step=step,
                when=when,
                reward=records.mean(rewards),
                problems=len(rewards),
                tasks=tasks,
                variance=records.finite(pvariance(rewards)) if len(rewards) > 1 else None,
            )
        )

    def node(self, message: NodeSeen, now_s: float) -> None:
        """Record an event of a host; a join or an end is recorded once."""
        if (message.event == "joined") == (message.node in self._writer.hosts):
            return
        self._writer.write(
            records.Node(
                t_s=self._t_s(now_s),
                node=message.node,
                role=message.role,
                event=message.event,
                devices=message.devices,
                cause=message.cause,
            )
        )

    def phase(self, phase: PhaseName, now_s: float) -> None:
        """Record the phase that the job enters."""
        if phase != self._phase:
            self._phase = phase
            self._writer.write(records.Phase(t_s=self._t_s(now_s), phase=phase))

    def first_instance(self, found: FirstInstance, served: bool, now_s: float) -> str:
        """A preemptible instance serves, or none has for too long; why, as it is reported."""
        hosts = self.hosts("preemptible")
        why = "" if served else found.why(hosts)
        self._writer.write(
            records.FirstInstance(
                t_s=self._t_s(now_s),
                served=served,
                waited_s=round(found.waited_s, 3),
                hosts=hosts,
                why=why,
            )
        )
        return why

    def verifier(self, sick: Sickness | None, now_s: float) -> None:
        """The verifier has become sick, or is well again."""
        self._writer.write(
            records.Verifier(
                t_s=self._t_s(now_s), sick=sick is not None, why="" if sick is None else in_a_line(sick.words)
            )
        )

    def role(self, node: str) -> str:
        """The role of a host that is up; "" for any other."""
        return self._writer.hosts.get(node, "")

    def hosts(self, role: str) -> int:
        """The number of hosts that are up."""
        return list(self._writer.hosts.values()).count(role)

    def restart(self, message: RestartSeen, now_s: float) -> None:
        """A supervisor restarted a child."""
        self._writer.write(
            records.Restart(
                t_s=self._t_s(now_s),
                actor=message.actor,
                cause=in_a_line(message.cause),
                incarnation=message.incarnation,
            )
        )

    def sample(self, step: int, figures: RolloutFigures, now_s: float) -> None:
        """Record a fleet sample; the rate is since the last sample."""
        t_s = self._t_s(now_s)
        period_s = t_s - self._sampled_s
        new = 0 if self._tokens is None else max(0, figures.tokens_collected - self._tokens)
        self._sampled_s, self._tokens = t_s, figures.tokens_collected
        self._writer.write(
            records.Sample(
                t_s=t_s,
                step=step,
                reserved=self.hosts("reserved"),
                preemptible=self.hosts("preemptible"),
                serving=figures.serving_reserved + figures.serving_preemptible,
                executing=figures.executing,
                pending=figures.pending + figures.queued,
                tokens_collected=figures.tokens_collected,
                migrations=figures.requests_migrated,
                moves=figures.requests_moved,
                tokens_per_s=new / period_s if period_s > 0 else 0.0,
                busy=figures.busy_preemptible,
                wasted=figures.tokens_wasted,
                generated_twice=figures.tokens_generated_twice,
                weights=figures.weights_pulled,
                verdicts=figures.verdicts,
                asked_again=figures.asked_again,
                failure=figures.failure,
            )
        )

    def account(self, prices: Prices) -> dict[str, float | int | str]:
        """The cost of the run so far and its use: figures of the live view."""
        used = self._writer.used
        cost = sum(used.cost(prices))
        wasted = sum(used.wasted.values()) + used.twice
        figures: dict[str, float | int | str] = {"cost": round(cost, 6), "currency": prices.currency}
        figures["tokens_wasted"] = wasted
        if used.steps:
            figures["cost_per_step"] = round(cost / used.steps, 6)
        if used.trained:
            figures["cost_per_million_tokens"] = round(cost / used.trained * 1e6, 6)
        return figures

    def _t_s(self, now_s: float) -> float:
        return now_s - self._begin_s
