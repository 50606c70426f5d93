"""The order of the training problems that a job's settings ask for.

Pure.
"""

from gleaner.actors.training.draw_events import DrawOrder
from gleaner.actors.training.problem_order import ProblemOrder
from gleaner.actors.training.round_draws import RoundDraws
from gleaner.actors.training.rounds import RoundRule
from gleaner.configs.schema import Config


def draw_order_of(config: Config) -> DrawOrder:
    """The order of a job that has not begun."""
    rollout, rounds = config.rollout, config.rounds
    if not rounds.on:
        return ProblemOrder(config.train_problems, rollout.prompts)
    launched = rounds.launched(rollout.prompts, rollout.samples)
    rule = RoundRule(
        rollout.prompts,
        rollout.samples,
        *launched,
        config.job.steps,
        rounds.drain,
        rollout.staleness,
        refills=rollout.max_refills * rollout.prompts * rollout.drop_uniform,
    )
    return RoundDraws(
        config.train_problems,
        rule,
        own_seeds=rounds.seeds == "own",
        auto=rounds.mode == "auto",
        planned=rounds.prompts_plan == "model",
        history=rounds.history,
    )
