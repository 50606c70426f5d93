"""Cross-check: predicts real runs of this machine and compares them.

`python -m bench.evaluation.crosscheck [--json FILE]`. Owns the comparison: the quickstart on real processes,
co-located and with preemptible hosts under its trace, and the same on a simulated cluster, whose engine,
trainer and shared cores were measured here directly (`this_machine`). A rehearsal gives the cost of the
surrounding processes in a whole job. It is a short real run with another seed and permanent preemptible
hosts; engine and trainer are slowed down until its mean step is met. From the run itself the simulation takes
one input: the length of each response.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from bench.evaluation.page import crosscheck_text
from bench.evaluation.simulated import ROOT
from bench.evaluation.this_machine import Machine, measure
from bench.page_sections import put
from gleaner.actors.training.history import read_history
from gleaner.actors.training.records import AnyRecord, Step
from gleaner.actors.training.seeds import request_seed
from gleaner.configs import trace
from gleaner.configs.load import load
from gleaner.configs.schema import Config
from gleaner.rlctl.audit.run_files import gather
from gleaner.rlctl.what_if_setup import VOCABULARY
from gleaner.sim.cluster import SimCluster
from gleaner.sim.disk import SYNC_S
from gleaner.sim.models.fit import fit_lengths
from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.job_model import JobModel, Measured
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.scorer import ScorerLaw
from gleaner.sim.models.shapes import ModelShape
from gleaner.sim.models.training_cost import training_cost
from gleaner.sim.network_path import WITHIN_HOST
from gleaner.sim.run_setup import Paces, RunSetup

GOAL = 0.2
STEPS, REHEARSED = 16, 8
REHEARSAL = (f"job.steps={REHEARSED}", "job.seed=1", "fleet.trace=")
ROUNDS = 3  # rounds of making the machine slower; the second changes a few percent
RUN_S = 600.0
RUNS: Mapping[str, tuple[str, ...]] = {
    "co-located": ("fleet.n_prem_max=0", "fleet.trace="),
    "preemptible hosts under the trace": (),
}
CONFIG = "quickstart"


@dataclass(frozen=True)
class Recorded(LengthLaw):
    """Responses as long as they were in a run, by their seeds; other seeds follow the law."""

    lengths: Mapping[int, int] = field(default_factory=dict)

    def length(self, seed: int, prompt: int, limit: int) -> int:
        """See `LengthLaw`."""
        return self.lengths.get(seed) or super().length(seed, prompt, limit)

    def scaled(self, factor: float) -> LengthLaw:
        """See `LengthLaw`; recorded lengths are of one scale."""
        if factor != 1.0:
            raise ValueError("lengths of a run are recorded in its own tokens")
        return self


def real(folder: Path, sets: Sequence[str]) -> Path:
    """Run it to its end; return its folder. Raises CalledProcessError, TimeoutExpired."""
    words = [arg for one in sets for arg in ("--set", one)]
    argv = [sys.executable, "-m", "gleaner.rlctl", "run", CONFIG, *words, "--runs-dir", str(folder)]
    subprocess.run(argv, check=True, timeout=RUN_S, stdout=subprocess.DEVNULL)
    (found,) = [path for path in folder.iterdir() if (path / "history.jsonl").exists()]
    return found


def lengths_of(run: Path, config: Config) -> Recorded:
    """Lengths of all responses of a run."""
    lengths: dict[int, int] = {}
    groups: dict[str, list[int]] = {}
    for ledger in gather(run, config, complete=False).ledgers:
        for request in ledger.requests:
            batch, group, sample = request.request.split("/")
            lengths[request_seed(config.job.seed, batch, int(group), int(sample))] = request.count
            groups.setdefault(f"{batch}/{group}", []).append(request.count)
    law = fit_lengths(groups.values(), config.rollout.max_new_tokens)
    return Recorded(law.median, law.sigma, law.correlation, lengths)


def predicted(config: Config, machine: Machine, lengths: Recorded) -> list[Step]:
    """The steps of the same job on a simulated cluster."""
    job_model = JobModel(
        ModelShape.of(config.model, VOCABULARY),
        lengths,
        scorer=ScorerLaw(
            start_s=machine.start_s, median_s=machine.score_s, prompt_rows=machine.prompt_tokens
        ),
        measured=Measured(machine.engine, machine.trainer),
    )
    setting = RunSetup(
        job_model.settings(config),
        seed=config.job.seed,
        job_model=job_model,
        trace=trace.read(config.fleet.trace) if config.fleet.trace else None,
        link=WITHIN_HOST,
        paces=Paces(boot_s=0.0, start_s=machine.start_s, prepare_s=machine.prepare_s),
        crowding=machine.crowding,
        one_machine=True,
    )
    cluster = SimCluster(setting)
    for host in cluster.hosts.values():
        host.disk.slowness.begin(machine.sync_s / SYNC_S)
    return steps_of(cluster.run().history)


def rehearsed(config: Config, machine: Machine, lengths: Recorded, measured: Sequence[Step]) -> float:
    """The factor by which engine and trainer are slower in this run than alone."""
    factor = 1.0
    for _ in range(ROUNDS):
        ours = predicted(config, slower(machine, factor), lengths)
        factor *= sum(step.step_s for step in measured) / sum(step.step_s for step in ours)
    return factor


def slower(machine: Machine, factor: float) -> Machine:
    """Engine and trainer take so many times as long."""
    engine = {one.name: factor * getattr(machine.engine, one.name) for one in fields(machine.engine)}
    trainer = {one.name: factor * getattr(machine.trainer, one.name) for one in fields(machine.trainer)}
    return replace(
        machine, engine=replace(machine.engine, **engine), trainer=replace(machine.trainer, **trainer)
    )


def steps_of(records: Sequence[AnyRecord]) -> list[Step]:
    """Steps in order."""
    return [record for record in records if isinstance(record, Step)]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.evaluation.crosscheck", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each run ({STEPS})")
    parser.add_argument("--write-docs", action="store_true", help="the verdict into docs/evaluation.md")
    arguments = parser.parse_args()
    found: dict[str, object] = {}
    machine: Machine | None = None
    met = True
    for name, sets in RUNS.items():
        rehearsal = load(CONFIG, (*sets, *REHEARSAL))
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name}: a rehearsal of {REHEARSED} steps", flush=True)
            run = real(Path(folder), (*sets, *REHEARSAL))
            if machine is None:
                start = training_cost(ModelShape.of(rehearsal.model, VOCABULARY), HostDevices("cpu_core"))
                machine = measure(rehearsal, run / "model", start, lambda what: print(f"measuring {what}"))
                print(_of(machine), flush=True)
            past = steps_of(read_history(run / "history.jsonl"))
            factor = rehearsed(rehearsal, machine, lengths_of(run, rehearsal), past)
            print(f"{name}: engine and trainer are {factor:.2f} times as slow as alone", flush=True)
        sets = (f"job.steps={arguments.steps}", *sets)
        config = load(CONFIG, sets)
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name}: a real run of {arguments.steps} steps", flush=True)
            run = real(Path(folder), sets)
            measured = steps_of(read_history(run / "history.jsonl"))
            ours = predicted(config, slower(machine, factor), lengths_of(run, config))
        rows = [(step.step_s, other.step_s) for step, other in zip(measured, ours, strict=True)]
        off = sum(other for _, other in rows) / sum(step for step, _ in rows) - 1.0
        for number, (step, other) in enumerate(zip(measured, ours, strict=True), 1):
            print(f"  step {number:2d}: {step.step_s:6.2f} s measured, {other.step_s:6.2f} s predicted")
        print(f"{name}: predicted {off:+.1%} of what was measured, goal {GOAL:.0%}")
        met = met and abs(off) <= GOAL
        found[name] = {
            "steps": rows,
            "off": off,
            "rehearsed": factor,
            "parts_measured": _parts(measured),
            "parts_predicted": _parts(ours),
        }
    assert machine is not None
    print("within the goal" if met else "NOT within the goal")
    result = {"machine": asdict(machine), "runs": found, "goal": GOAL, "met": met}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.write_docs:
        put(ROOT / "docs" / "evaluation.md", "crosscheck", crosscheck_text(result, _of(machine)))
    sys.exit(0 if met else 1)


def _parts(steps: Sequence[Step]) -> dict[str, float]:
    """Mean seconds."""
    return {
        part: round(statistics.mean(getattr(step, part) for step in steps), 3)
        for part in ("seeding_s", "waiting_s", "training_s", "weights_s", "step_s")
    }


def _of(machine: Machine) -> str:
    engine, trainer, crowding = machine.engine, machine.trainer, machine.crowding
    return (
        f"decoding: {1e3 * engine.step_s:.2f} ms a step, {1e6 * engine.row_s:.0f} us a request, "
        f"{1e6 * engine.prefill_token_s:.0f} us a token of prefill; {machine.engine_off}\n"
        f"training: {1e3 * trainer.step_s:.0f} ms a step, {1e3 * trainer.micro_batch_s:.0f} ms each batch, "
        f"{1e6 * trainer.token_s:.0f} us a token; {machine.trainer_off}\n"
        f"1, 2, ... engines at a time take {_factors(crowding.turns)} times as long, "
        f"beside a trainer {_factors(crowding.beside_training)}\n"
        f"a trainer beside 0, 1, ... engines takes {_factors(crowding.training)} times as long\n"
        f"a commit of a journal takes {1e3 * machine.sync_s:.1f} ms, a score {1e3 * machine.score_s:.1f} ms\n"
        f"a process starts in {machine.start_s:.1f} s, with torch in {machine.prepare_s:.1f} s more"
    )


def _factors(factors: Sequence[float]) -> str:
    return ", ".join(f"{factor:.2f}" for factor in factors)


if __name__ == "__main__":
    main()
