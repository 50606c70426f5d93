"""Model times for a what-if, fitted to a measured run's history and journals.

Owns the choice of the files and the text of the result. The regression is in `gleaner.sim.models.fit`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gleaner.actors.protocol.rollout import BatchLedger
from gleaner.actors.training.history import HistoryError, read_history
from gleaner.configs.schema import Config
from gleaner.rlctl.audit.run_files import gather
from gleaner.rlctl.errors import failed, nothing, usage
from gleaner.rlctl.runs import RunDir
from gleaner.sim.models.fit import (
    TooLittle,
    engine_steps,
    fit_engine,
    fit_lengths,
    fit_training,
    training_steps,
)
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.job_model import JobModel, Measured
from gleaner.sim.models.lengths import LengthLaw

STEPS = "step-"
"""Prefix of the names of training batches; the others are evaluations."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Measurements of a run. remarks: lines for the user, each with the error of the fit."""

    measured: Measured
    lengths: LengthLaw
    remarks: tuple[str, ...]

    def job_model(self, job_model: JobModel, *, keep_lengths: bool) -> JobModel:
        """The plant with the measured times. keep_lengths: the user chose another law of responses."""
        law = job_model.law if keep_lengths else self.lengths
        return replace(job_model, measured=self.measured, law=law)


def fitted(run: RunDir, job_model: JobModel, reserved: HostDevices) -> Fitted:
    """Measure the run. plant, reserved: the simulation's assumptions for everything that the run does not
    contain. Raises CommandError where the history is missing or too short."""
    if not run.history.exists():
        raise nothing(f"{run.id} has no history yet: it never began to train")
    config = run.config()
    try:
        records = read_history(run.history)
        engine, engine_off = fit_engine(engine_steps(records))
        shortest, longest = job_model.scorer.prompt_rows
        prompt = (shortest + longest) / 2 * job_model.token_scale
        count = -(-config.rollout.prompts // config.training.micro_batch_groups)
        steps = training_steps(records, count, prompt_tokens=prompt)
        trainer, trainer_off = fit_training(steps, job_model.trainer(reserved))
        lengths = fit_lengths(_lengths(run, config), config.rollout.max_new_tokens)
    except HistoryError as problem:
        raise failed(str(problem)) from problem
    except TooLittle as problem:
        raise usage(f"--fit {run.id}: {problem}") from problem
    step_ms, row_ms, token_ms = (1e3 * s for s in (engine.step_s, engine.row_s, trainer.token_s))
    remarks = (
        f"times of {run.id}, and how far off they are in steps of it that were not used:",
        f"  decoding   {step_ms:.3g} ms a step and {row_ms:.3g} ms a request; {engine_off}",
        f"  training   {trainer.step_s:.3g} s a step and {token_ms:.3g} ms a token; {trainer_off}",
        f"  responses  median {lengths.median:.0f} tokens, sigma {lengths.sigma:.2f}, correlation in a group "
        f"{lengths.correlation:.2f}",
    )
    return Fitted(Measured(engine, trainer), lengths, remarks)


def _lengths(run: RunDir, config: Config) -> list[list[int]]:
    """Response lengths of each group that was trained, from the manager's ledger."""
    ledgers: Sequence[BatchLedger] = gather(run.path, config, complete=False).ledgers
    groups: dict[str, list[int]] = {}
    for ledger in ledgers:
        if ledger.batch.startswith(STEPS):
            for request in ledger.requests:
                groups.setdefault(request.request.rpartition("/")[0], []).append(request.count)
    return list(groups.values())
