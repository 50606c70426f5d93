"""Measurements of this machine for the simulator: decoding, training, cores.

Owns the measuring, in processes of their own as in a real run. The fit is in `gleaner.sim.models.fit`.
"""

import asyncio
import multiprocessing
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bench.evaluation.engine_processes import ANSWER_S, LONG, Engines
from bench.evaluation.shared_cores import crowding, samples
from gleaner.actors.reward.task import tasks_of
from gleaner.actors.rollout.state.events import BatchReleased
from gleaner.actors.training.settings import ComputeSettings
from gleaner.actors.training.trainer_files import TrainerFiles
from gleaner.configs.schema import Config
from gleaner.sim.models.engine_cost import EngineCost
from gleaner.sim.models.fit import FitError, TrainingStep, fit_engine, fit_training
from gleaner.sim.models.training_cost import TrainingCost
from gleaner.sim.shared_cores import CoreSharing
from gleaner.supervisor.journal.sqlite import SqliteJournal

SHAPES = ((1, 32), (8, 4), (4, 8), (2, 16), (1, 8), (3, 4))
"""Micro-batches of a measured step, and groups of each: all groups at once, as in a co-located step, or as
they arrive."""
TRAIN_ROUNDS = 3
COMMITS = 40
PROBLEMS = 64  # problems whose prompts and scores are measured


@dataclass(frozen=True, slots=True)
class Machine:
    """Results. engine_off, trainer_off: errors on measurements outside the fit. crowding: see
    `gleaner.sim.shared_cores`. start_s, prepare_s: from the start of a process to its first line, and the
    additional time with torch.
    score_s: of one answer. prompt_tokens: shortest and longest. sync_s: of one commit of a journal, without
    the time that a group gathers."""

    engine: EngineCost
    engine_off: FitError
    trainer: TrainingCost
    trainer_off: FitError
    crowding: CoreSharing
    start_s: float
    prepare_s: float
    score_s: float
    prompt_tokens: tuple[int, int]
    sync_s: float


def measure(config: Config, model_dir: Path, start: TrainingCost, tell: Callable[[str], None]) -> Machine:
    """All of it, about a minute. start: trainer values that are not measured here."""
    tell("prompts and scores")
    prompts, score_s = _task(config, model_dir)
    prompt = round(statistics.mean(prompts))
    tell("engines")
    with Engines(config, model_dir, prompt) as engines:
        steps = engines.steps()
        tell("shared cores")
        shared = crowding(engines, config, model_dir, prompt)
    engine, engine_off = fit_engine(steps)
    tell("training")
    trained, publish_s = _in_a_process(_train, config, model_dir, prompt)
    trainer, trainer_off = fit_training(trained, start)
    tell("processes")
    start_s, all_s = (
        _starts("import gleaner.nodeagent.__main__"),
        _starts("import gleaner.actors.engine.builtin.host"),
    )
    return Machine(
        engine=engine,
        engine_off=engine_off,
        trainer=replace(trainer, publish_s=publish_s, copy_s=publish_s),
        trainer_off=trainer_off,
        crowding=shared,
        start_s=start_s,
        prepare_s=max(0.0, all_s - start_s),
        score_s=score_s,
        prompt_tokens=(min(prompts), max(prompts)),
        sync_s=asyncio.run(_sync_s()),
    )


def _task(config: Config, model_dir: Path) -> tuple[list[int], float]:
    task = tasks_of(config, model_dir)
    prompts = [task.problem("train", index).prompt_tokens for index in range(PROBLEMS)]
    task.open()
    began_s = time.perf_counter()
    task.score_all([("train", index, prompt[:LONG]) for index, prompt in enumerate(prompts)])
    score_s = (time.perf_counter() - began_s) / PROBLEMS
    task.close()
    return [len(prompt) for prompt in prompts], score_s


async def _sync_s() -> float:
    """Commit time of a journal as the manager's, in the folder of runs."""
    with tempfile.TemporaryDirectory() as folder:
        journal = SqliteJournal(Path(folder) / "journal.sqlite", commit_s=0.001)
        await journal.open("measured", 1)
        times = []
        for _ in range(COMMITS):
            began_s = time.perf_counter()
            await journal.append("measured", 1, [BatchReleased(batch="measured")])
            times.append(time.perf_counter() - began_s - 0.001)
        await journal.close()
    return max(0.0, statistics.mean(times))


def _starts(code: str) -> float:
    times = []
    for _ in range(3):
        began_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, timeout=ANSWER_S)
        times.append(time.perf_counter() - began_s)
    return statistics.median(times)


# -- training --


def _in_a_process(
    work: Callable[..., tuple[list[TrainingStep], float]], *arguments: object
) -> tuple[list[TrainingStep], float]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(work, arguments).get(ANSWER_S)


def _train(config: Config, model_dir: Path, prompt: int) -> tuple[list[TrainingStep], float]:
    """Steps of other numbers of micro-batches and tokens, and the seconds to publish one image of weights."""
    rng = random.Random(0)
    shapes = [*SHAPES * TRAIN_ROUNDS]
    rng.shuffle(shapes)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        work = TrainerFiles(
            ComputeSettings.of(config), model_dir, Path(folder) / "store", Path(folder) / "state"
        )
        work.load("")
        found, published = [], []
        for step, (count, groups) in enumerate([(1, 4), *shapes]):
            longest = rng.choice([16, 32, config.rollout.max_new_tokens])
            batches = [samples(rng, groups * config.rollout.samples, prompt, longest) for _ in range(count)]
            began_s = time.perf_counter()
            work.begin_step()
            for batch in batches:
                work.add_micro_batch(batch)
            work.finish_step()
            seconds = time.perf_counter() - began_s
            tokens = sum(len(sample) for batch in batches for sample in batch)
            found.append(TrainingStep(seconds, tokens, len(batches)))
            began_s = time.perf_counter()
            work.write_image(step + 1)
            published.append(time.perf_counter() - began_s)
    return found[1:], statistics.median(published)  # the first one warms up
