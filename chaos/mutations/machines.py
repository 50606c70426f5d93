"""Planted bugs in what bears bad disks, clouds, engines and trainers, and the commands of operators.

The campaign `machines` hunts them, each with the kind of fault that leads there.
"""

from gleaner.chaos.mutate import Edit
from gleaner.chaos.mutations.mutation import Mutation

CONTENT_CHECKS = ("contents", "updates", "I1", "I2", "I3", "I8", "history", "verdicts")
FLEET_CHECKS = ("fleet size", "I8")


def _slip(
    name: str,
    safeguard: str,
    module: str,
    right: str,
    wrong: str,
    caught_by: tuple[str, ...],
    *faults: str,
) -> Mutation:
    edits = (Edit(f"gleaner.{module}", right, wrong),)
    return Mutation(name, safeguard, edits, caught_by, faults, campaign="machines")


MACHINES: tuple[Mutation, ...] = (
    # -- engines --
    _slip(
        "tokens outside of the vocabulary",
        "a turn with a token that the model does not have is refused",
        "actors.engine.worker.turn_check",
        "(token := int(output.tokens.max())) >= vocabulary:",
        "(token := int(output.tokens.max())) < 0:",
        CONTENT_CHECKS,
        "bad_engine",
    ),
    _slip(
        "log-probs that are no numbers",
        "a turn with a log-prob that is not finite is refused",
        "actors.engine.worker.turn_check",
        "    if not (np.isfinite(least) and most <= MOST_LOGPROB):",
        "    if most > MOST_LOGPROB:",
        CONTENT_CHECKS,
        "bad_engine",
    ),
    _slip(
        "tokens of a ticket that was never given",
        "a turn with a token of an unknown ticket is refused",
        "actors.engine.worker.turn_check",
        "    if int(output.tickets.max()) > last_ticket:",
        "    if last_ticket < 0:",
        CONTENT_CHECKS,
        "bad_engine",
    ),
    # -- clouds --
    _slip(
        "a host that was not requested is kept",
        "a host that the cloud delivers beyond the wish goes back",
        "actors.cluster.fleet",
        "            if len(self._running) - len(self._withdrawn) > min(self.n_prem, self._n_prem_max):",
        "            if len(self._running) < 0:",
        FLEET_CHECKS,
        "cloud_trouble",
    ),
    # -- operators --
    _slip(
        "a job that is submitted again is refused",
        "the running job may be submitted again",
        "actors.cluster.scheduler",
        'self._now.state in ("running", "done"):\n            return self._job_is()',
        'self._now.state == "done":\n            return self._job_is()',
        ("commands",),
        "operator_command",
    ),
)
