"""Measures the slowdown of engines and a trainer that share this machine's cores.

Owns the measuring; `gleaner.sim.shared_cores` uses the result.
"""

import random
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from bench.evaluation.engine_processes import ANSWER_S, CROWD, LONG, Engines, started
from gleaner.actors.training.sample import Sample
from gleaner.actors.training.settings import ComputeSettings
from gleaner.actors.training.trainer_files import TrainerFiles
from gleaner.configs.schema import Config
from gleaner.sim.shared_cores import CoreSharing

GROUPS = 4  # of the micro-batch that is trained again and again
LEAST = 8  # of them
ALONE_S = 3.0

T = TypeVar("T")


def crowding(engines: Engines, config: Config, model_dir: Path, prompt: int) -> CoreSharing:
    """The factors; prompts of so many tokens. Raises TimeoutError where a process does not answer."""
    alone_s = statistics.median(engines.turns(1))
    turns = [statistics.median(engines.turns(count)) / alone_s for count in range(1, CROWD + 1)]
    process, pipe = started(_train, config, model_dir, prompt)
    try:
        trainer = _Trainer(pipe)
        _, trains_alone_s = trainer.during(partial(time.sleep, ALONE_S))
        beside, trains = [], [1.0]
        for count in range(1, CROWD):
            seconds, trains_s = trainer.during(partial(engines.turns, count))
            beside.append(statistics.median(seconds) / alone_s)
            trains.append(trains_s / trains_alone_s)
    finally:
        process.terminate()
        process.join(5.0)
    return CoreSharing(tuple(_never_less(turns)), tuple(_never_less(beside)), tuple(_never_less(trains)))


def _never_less(factors: Sequence[float]) -> list[float]:
    """Rounded; no process is faster in a larger crowd, or than alone."""
    found = [1.0]
    for factor in factors:
        found.append(max(found[-1], round(factor, 3)))
    return found[1:]


class _Trainer:
    """A process that trains on one micro-batch again and again on request."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._answer()  # it is ready

    def during(self, work: Callable[[], T]) -> tuple[T, float]:
        """It trains during `work`: return the result of `work`, and the median seconds of a micro-batch."""
        self._pipe.send(None)
        found = work()
        self._pipe.send(None)
        return found, statistics.median(self._answer())

    def _answer(self) -> list[float]:
        if not self._pipe.poll(ANSWER_S):
            raise TimeoutError(f"a measured trainer sent nothing for {ANSWER_S:.0f} s")
        found: list[float] = self._pipe.recv()
        return found


def _train(pipe: Connection, config: Config, model_dir: Path, prompt: int) -> None:
    batch = samples(random.Random(0), GROUPS * config.rollout.samples, prompt, LONG)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        work = TrainerFiles(
            ComputeSettings.of(config), model_dir, Path(folder) / "store", Path(folder) / "state"
        )
        work.load("")
        pipe.send([])
        while True:
            pipe.recv()
            work.begin_step()
            found: list[float] = []
            while len(found) < LEAST or not pipe.poll():
                began_s = time.perf_counter()
                work.add_micro_batch(batch)
                found.append(time.perf_counter() - began_s)
            pipe.recv()
            pipe.send(found)


def samples(rng: random.Random, count: int, prompt: int, longest: int) -> Sequence[Sample]:
    """Generated ones, of 4 to `longest` tokens after prompts of `prompt`."""
    lengths = [rng.randint(4, longest) for _ in range(count)]
    return [
        Sample(
            prompt=array("I", range(1, prompt + 1)),
            response=array("I", [1 + n % 90 for n in range(length)]),
            logprobs=array("f", [-1.0] * length),
            advantage=rng.uniform(-1.0, 1.0),
        )
        for length in lengths
    ]
