"""Measures this machine for the simulator: decode turns, training steps, processes that share its cores.

Owns the measuring, in processes of their own as in a real run. An engine's turn is measured as its worker
drives it: on a thread beside an event loop, with its frame sent to another process, which acknowledges it.
What is fitted to it is `sim.models.fit`'s.
"""

import asyncio
import multiprocessing
import random
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import uvloop

from actors.engine.builtin import BuiltinEngine
from actors.engine.checkpoint import load_checkpoint
from actors.engine.engine import Assignment
from actors.reward.task import Task
from actors.rollout.events import BatchReleased
from actors.training.sample import Sample
from actors.training.trainer_files import TrainerFiles
from configs.schema import Config
from sim.models.engine_cost import EngineCost
from sim.models.fit import EngineStep, FitError, TrainingStep, fit_engine, fit_training
from sim.models.training_cost import TrainingCost
from supervisor.sqlite_journal import SqliteJournal
from transport.stream_receiver import StreamReceiver
from transport.token_stream import StreamSender
from transport.wire import Peer

ROUNDS = 4  # of every batch size: the machine's moods are in all of them
LONG = 40  # tokens of one measured response
CROWD = 4  # engines at a time at most: a trainer's and three more
CROWD_TURNS = 400
SHAPES = ((1, 32), (8, 4), (4, 8), (2, 16), (1, 8), (3, 4))
"""Micro-batches of a measured step, and groups of each: all groups at once, as a co-located step has them, or
as they come."""
TRAIN_ROUNDS = 3
COMMITS = 40
ANSWER_S = 120.0
PROBLEMS = 64  # whose prompts and scores are looked at


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found. engine_off, trainer_off: of measurements that were not fitted. crowding: see
    `sim.crowd`. start_s, prepare_s: from the start of a process to its first line, with torch so much more.
    score_s: of one answer. prompt_tokens: shortest and longest. sync_s: of one commit of a journal, without
    the time that a group gathers."""

    engine: EngineCost
    engine_off: FitError
    trainer: TrainingCost
    trainer_off: FitError
    crowding: tuple[float, ...]
    start_s: float
    prepare_s: float
    score_s: float
    prompt_tokens: tuple[int, int]
    sync_s: float


def measure(config: Config, model_dir: Path, start: TrainingCost, tell: Callable[[str], None]) -> Machine:
    """All of it, about a minute. start: what of a trainer is not measured here."""
    tell("prompts and scores")
    prompts, score_s = _task(config, model_dir)
    prompt = round(statistics.mean(prompts))
    tell("engines")
    with _Engines(config, model_dir, prompt) as engines:
        steps = engines.steps()
        alone_s = statistics.median(engines.crowd(1))
        crowding = [1.0]
        for count in range(2, CROWD + 1):
            crowding.append(max(crowding[-1], statistics.median(engines.crowd(count)) / alone_s))
    engine, engine_off = fit_engine(steps)
    tell("training")
    trained, publish_s = _in_a_process(_train, config, model_dir, prompt)
    trainer, trainer_off = fit_training(trained, start)
    tell("processes")
    start_s, all_s = _starts("import nodeagent.__main__"), _starts("import actors.engine.host")
    return Machine(
        engine=engine,
        engine_off=engine_off,
        trainer=replace(trainer, publish_s=publish_s, copy_s=publish_s),
        trainer_off=trainer_off,
        crowding=tuple(round(factor, 3) for factor in crowding),
        start_s=start_s,
        prepare_s=max(0.0, all_s - start_s),
        score_s=score_s,
        prompt_tokens=(min(prompts), max(prompts)),
        sync_s=asyncio.run(_sync_s()),
    )


def _task(config: Config, model_dir: Path) -> tuple[list[int], float]:
    task = Task(config.task.name, config.task.params, config.job.seed, model_dir)
    prompts = [task.problem("train", index).prompt_tokens for index in range(PROBLEMS)]
    began_s = time.perf_counter()
    for index, prompt in enumerate(prompts):
        task.score("train", index, prompt[:LONG])
    return [len(prompt) for prompt in prompts], (time.perf_counter() - began_s) / PROBLEMS


async def _sync_s() -> float:
    """Of a journal as the manager's, in the folder that runs are in."""
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


# -- engines --


class _Engines:
    """CROWD engine processes, and the one that their streams go to."""

    def __init__(self, config: Config, model_dir: Path, prompt: int) -> None:
        self._made = (config, model_dir, prompt)
        self._slots = config.engine.slots
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> "_Engines":
        endpoint = _answer(self._start(_receive))
        for number in range(CROWD):
            self._pipes.append(self._start(_decode, *self._made, endpoint, f"engine-{number}"))
        for pipe in self._pipes:
            _answer(pipe)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.join(5.0)

    def steps(self) -> list[EngineStep]:
        """Turns of one engine alone, with one to all slots taken."""
        sizes = [1, 2, 4, *range(8, self._slots + 1, 4)] * ROUNDS
        random.Random(0).shuffle(sizes)  # a slow moment does not hit one size alone
        found: list[EngineStep] = []
        for rows in sizes:
            self._pipes[0].send((rows, LONG))
            found += _answer(self._pipes[0])
        return found

    def crowd(self, count: int) -> list[float]:
        """Seconds of decode turns with all slots taken, of so many engines at a time."""
        for pipe in self._pipes[:count]:
            pipe.send((self._slots, CROWD_TURNS))
        turns: list[EngineStep] = [step for pipe in self._pipes[:count] for step in _answer(pipe)]
        return [turn.seconds for turn in turns if not turn.prefilled]

    def _start(self, work: Callable[..., None], *arguments: object) -> Connection:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=work, args=(theirs, *arguments), daemon=True)
        process.start()
        self._processes.append(process)
        return ours


def _answer(pipe: Connection) -> "list[EngineStep]":
    if not pipe.poll(ANSWER_S):
        raise TimeoutError(f"a process that measures said nothing for {ANSWER_S:.0f} s")
    found: list[EngineStep] = pipe.recv()
    return found


def _receive(pipe: Connection) -> None:
    async def main() -> None:
        receiver = StreamReceiver(
            "tcp://127.0.0.1:0",
            lambda frame: receiver.acknowledge(frame.stream, frame.incarnation, frame.seq),
            lambda stream, incarnation: 0,
        )
        pipe.send(receiver.local.endpoint)
        await asyncio.Event().wait()

    uvloop.run(main())


def _decode(pipe: Connection, config: Config, model_dir: Path, prompt: int, endpoint: str, name: str) -> None:
    """An engine: (requests, tokens of each) comes, its turns go."""
    engine = BuiltinEngine(
        load_checkpoint(model_dir).requires_grad_(False),
        slots=config.engine.slots,
        max_tokens=config.engine.max_prompt_tokens + CROWD_TURNS,
        eos_token_ids=(),  # so that lengths are as asked
        threads=config.engine.threads,
    )

    async def main() -> None:
        sender = StreamSender(name, 1)
        sender.connect(Peer(endpoint))
        loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1)
        ticket = 0
        pipe.send([])
        while True:
            rows, tokens = await loop.run_in_executor(None, pipe.recv)
            engine.add(
                Assignment(
                    ticket=ticket + number,
                    prompt=array("I", range(1, prompt + 1)),
                    seed=ticket + number,
                    max_new_tokens=tokens,
                    temperature=1.0,
                )
                for number in range(rows)
            )
            ticket += rows
            found: list[EngineStep] = []
            while not engine.idle:
                context = rows * (prompt + len(found))
                began_s = time.perf_counter()
                await sender.writable()
                output = await loop.run_in_executor(thread, engine.step)
                sender.send(output.tickets, output.tokens, output.logprobs, output.flags)
                seconds = time.perf_counter() - began_s
                found.append(EngineStep(seconds, rows, context, 0.0 if found else rows * prompt))
            pipe.send(found)

    uvloop.run(main())


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
        work = TrainerFiles(config, model_dir, Path(folder) / "store", Path(folder) / "state")
        work.load("")
        found, published = [], []
        for step, (count, groups) in enumerate([(1, 4), *shapes]):
            longest = rng.choice([16, 32, config.rollout.max_new_tokens])
            batches = [_samples(rng, groups * config.rollout.samples, prompt, longest) for _ in range(count)]
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


def _samples(rng: random.Random, count: int, prompt: int, longest: int) -> Sequence[Sample]:
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
