"""Operator commands: each has the answer that its state demands.

Owns the comparison of answers with the job that the run has. Lost answers are repeated by the operator.
"""

from collections.abc import Iterable

from gleaner.actors.protocol.cluster import JobIs, SubmitJob
from gleaner.actors.protocol.rollout import PublishVersion
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import CommandAnswered, Fact


class CommandsAnswered(Check):
    """See the module."""

    fact_kinds = (CommandAnswered,)
    name = "commands"
    promise = (
        "the job that runs may be submitted again, and nothing changes; another job, and a version that is "
        "not the newest, are refused meanwhile"
    )
    meaning = (
        "If this fails, a command that is repeated after a lost answer starts a job twice, or a second "
        "operator takes the hosts of the first."
    )

    def see(self, fact: Fact) -> Iterable[str]:
        if not isinstance(fact, CommandAnswered):
            return
        message, answer = fact.message, fact.answer
        if isinstance(message, SubmitJob) and fact.command == "resubmit":
            if fact.refusal:
                yield f"the running job {message.job.run_id} was submitted again and refused: {fact.refusal}"
            elif isinstance(answer, JobIs) and answer.run_id != message.job.run_id:
                yield f"{message.job.run_id} was submitted again, and {answer.run_id} is {answer.state}"
        elif isinstance(message, SubmitJob) and answer is not None:
            yield f"{message.job.run_id} was accepted while another job runs: {answer}"
        elif isinstance(message, PublishVersion) and answer is not None:
            weights = message.weights
            yield f"version {weights.version} with root {weights.root.hex()[:12]} was published: {answer}"
