"""Sides of the comparison: each one's command, and the reader of its result.

Owns the settings of each side. All get the same model, problems, batch, held-out set and number of steps.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.quickstart.command_cost import CommandFailed, Cost, measure
from bench.runtime.harness import ENVIRONMENTS
from gleaner.actors.training.history import read_history
from gleaner.actors.training.records import Eval, Step
from gleaner.configs.schema import Config
from gleaner.rlctl.runs import every

TRL = ENVIRONMENTS / "quickstart" / "bin" / "python"
THREADS = 2
"""Of the plain trainer: it has both cores of the machine on which this was measured."""


@dataclass(frozen=True, slots=True)
class Job:
    """Common inputs of all sides. config: the settings with the task, batch and rates; settings: overrides of
    the preset; problems: the folder of their files."""

    config: Config
    preset: str
    settings: tuple[str, ...]
    model: Path
    problems: Path
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one side and seed. each_s: of each step; first, last: mean rewards on the held-out problems
    before the first and after the last step."""

    each_s: list[float]
    first: float
    last: float
    cost: Cost


__all__ = ["SIDES", "TRL", "CommandFailed", "Job", "Outcome"]

Run = Callable[[Job, Path], Outcome]


def on_trl(job: Job, folder: Path) -> Outcome:
    """TRL's GRPOTrainer. Raises CommandFailed."""
    config, task = job.config, job.config.task[0]
    settings = {
        "model": str(job.model),
        "problems": str(job.problems),
        "out": str(folder / "trl"),
        "task": task.name,
        "params": task.params,
        "steps": config.job.steps,
        "prompts": config.rollout.prompts,
        "samples": config.rollout.samples,
        "max_new_tokens": config.rollout.max_new_tokens,
        "learning_rate": config.training.learning_rate,
        "betas": config.training.betas,
        "seed": job.seed,
        "threads": THREADS,
    }
    script = Path(__file__).with_name("on_trl.py")
    output, stepped = folder / "out.txt", folder / "trl-stepped"
    settings["stepped"] = str(stepped)
    cost = measure([str(TRL), str(script), json.dumps(settings)], output, stepped.exists)
    (line,) = [line for line in output.read_text().splitlines() if line.startswith("RESULT ")]
    found = json.loads(line.removeprefix("RESULT "))
    return Outcome(found["steps_s"], found["first"], found["last"], cost)


def on_gleaner(*settings: str, preset: str = "") -> Run:
    """`rlctl run` of the preset, overridden by `settings`."""

    def run(job: Job, folder: Path) -> Outcome:
        argv = [sys.executable, "-m", "gleaner.rlctl", "run", preset or job.preset, "--plain"]
        argv += ["--runs-dir", str(folder / "runs")]
        for one in (f"model.path={job.model}", f"job.seed={job.seed}", *job.settings, *settings):
            argv += ["--set", one]
        cost = measure(argv, folder / "out.txt", lambda: _stepped(folder / "runs"))
        (made,) = every(folder / "runs")
        records = read_history(made.history)
        evals = {one.when: one.reward or 0.0 for one in records if isinstance(one, Eval)}
        each_s = [one.step_s for one in records if isinstance(one, Step)]
        return Outcome(each_s, evals["first"], evals["last"], cost)

    return run


def _stepped(runs_dir: Path) -> bool:
    """Whether a run there has ended a step."""
    return any(b'"kind":"step"' in file.read_bytes() for file in runs_dir.glob("*/history.jsonl"))


SIDES: dict[str, Run] = {
    "TRL": on_trl,
    "Gleaner, calm": on_gleaner("fleet.trace="),
    "Gleaner, hosts killed": on_gleaner(),
    "Gleaner, one host": on_gleaner(preset="onehost"),
}
