"""Planted bugs in what bears bad disks, clouds, engines and trainers, and the commands of operators.

The campaign `machines` hunts them, each with the kind of fault that leads there.
"""

from gleaner.chaos.mutate import Edit
from gleaner.chaos.mutations.mutation import Mutation

CONTENT_CHECKS = ("contents", "updates", "I1", "I2", "I3", "I8", "history", "verdicts")
FLEET_CHECKS = ("fleet size", "I8")
STATE_CHECKS = ("I5", "I8", "updates", "no stray failure")


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
        "(token := int(_most(output.tokens))) >= vocabulary:",
        "(token := int(_most(output.tokens))) < 0:",
        CONTENT_CHECKS,
        "bad_engine",
    ),
    _slip(
        "log-probs that are no numbers",
        "a turn with a log-prob that is not finite is refused",
        "actors.engine.worker.turn_check",
        "    if not (math.isfinite(least) and most <= MOST_LOGPROB):",
        "    if most > MOST_LOGPROB:",
        CONTENT_CHECKS,
        "bad_engine",
    ),
    _slip(
        "tokens of a ticket that was never given",
        "a turn with a token of an unknown ticket is refused",
        "actors.engine.worker.turn_check",
        "    if int(_most(output.tickets)) > last_ticket:",
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
    Mutation(
        "a drain that is reported once",
        "a drained host repeats its drain to the manager, which may have restarted",
        (
            Edit(
                "gleaner.nodeagent.departure",
                '        while kind == "hint":\n            await self._allow(allowed=False)\n'
                "            await asyncio.sleep(AGAIN_S)",
                '        if kind == "hint":\n            await self._allow(allowed=False)',
            ),
        ),
        ("drained hosts",),
        lead="a manager that restarts during drains",
        campaign="machines",
    ),
    Mutation(
        "a hint first undoes the notice",
        "a host whose notice becomes a hint gets no new requests meanwhile",
        (
            Edit(
                "gleaner.nodeagent.departure",
                '        if kind == "none":\n            while not await self._allow(allowed=True)',
                '        if kind != "":\n            while not await self._allow(allowed=True)',
            ),
        ),
        ("drained hosts",),
        lead="notices that become hints",
        campaign="machines",
    ),
    # -- disks and power --
    _slip(
        "a record of a step that is not forced out",
        "a reserved host forces its records of steps out to the disk",
        "nodeagent.children",
        'if bounds.force_out or self._role == "reserved":',
        "if bounds.force_out:",
        STATE_CHECKS,
        "power_loss",
    ),
    _slip(
        "commits that are not forced out",
        "each commit of the head is forced out, where the job wants that",
        "nodeagent.host",
        'force_out=config.job.journal_fsync == "commit",',
        "force_out=False,",
        (*CONTENT_CHECKS, "I4", "I5", "commands"),
        "power_loss",
    ),
    _slip(
        "a step that is done before its record is stored",
        "a step is done when its record is in the journal of its host",
        "actors.cluster.state_manager",
        "await self.ctx.journal.append(trained)",
        "self.ctx.journal.append_soon(trained)",
        STATE_CHECKS,
        "slow_disk",
    ),
    _slip(
        "a state is believed whatever it holds",
        "a saved state is compared with its seal before it is used",
        "actors.cluster.sealed_folder",
        "    if found != info:\n        what",
        "    if found is None:\n        what",
        STATE_CHECKS,
        "bit_rot",
        "kill_process",
        "kill_host",
    ),
    Mutation(
        "an image from before is believed",
        "an agent compares the images that it finds with their hashes, when it starts and for each engine",
        (
            Edit(
                "gleaner.actors.weights.transfer.version_index",
                "        if damage := await self._damage(manifest, note.part):",
                '        if damage := "":',
            ),
            Edit(
                "gleaner.actors.weights.transfer.version_index",
                "        self._handed.add((version, manifest.root))  # to engines of that life\n",
                "",
            ),
        ),
        ("I6", "I8"),
        ("bit_rot",),
        campaign="machines",
    ),
    _slip(
        "an image is handed out again unread",
        "an image that another engine gets is compared with its hashes once more",
        "actors.weights.agent",
        "                await self._served.look_again(*key)\n",
        "",
        ("I6", "I8"),
        "bit_rot",
    ),
    # -- trainers --
    _slip(
        "a step that takes long is begun again",
        "a trainer that is asked again while it trains goes on with its step",
        "actors.training.trainer",
        "        if self._running is None:\n",
        "        if self._running is None or self._running == message.step:\n",
        (*STATE_CHECKS, "history", "no silent wait"),
        "slow_trainer",
    ),
    # -- clouds, once more --
    Mutation(
        "a surplus host outlives the head",
        "a host beyond the most that may run goes back, though the head was away when it came",
        (
            Edit(
                "gleaner.actors.cluster.fleet",
                "for name in by_offer[n_prem_max:]:",
                "for name in by_offer[len(by_offer) :]:",
            ),
        ),
        FLEET_CHECKS,
        lead="a host that is delivered to no head",
        campaign="machines",
    ),
    _slip(
        "a refused host counts as rented",
        "a host that the cloud refuses is requested again",
        "actors.cluster.provider",
        "                    self._fleet.exited(action.name, now_s, in_order=False)\n            elif",
        "            elif",
        FLEET_CHECKS,
        "cloud_trouble",
        "kill_host",
    ),
)
