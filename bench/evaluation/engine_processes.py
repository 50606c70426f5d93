"""Engine processes for measurements, set up as in a real run.

Each engine is on a thread beside an event loop, and sends its frames to another process, which journals and
acknowledges them. Owns the processes. They end with `with`.
"""

import asyncio
import multiprocessing
import random
import tempfile
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import uvloop

from gleaner.actors.engine.builtin.engine import BuiltinEngine
from gleaner.actors.engine.builtin.engine_size import EngineSize
from gleaner.actors.engine.worker.engine_port import Assignment
from gleaner.actors.model.checkpoint import load_checkpoint
from gleaner.actors.rollout.state.events import FrameLogged
from gleaner.configs.schema import Config
from gleaner.sim.models.fit import EngineStep
from gleaner.supervisor.journal.sqlite import SqliteJournal
from gleaner.transport.stream_receiver import StreamReceiver
from gleaner.transport.token_frame import PackedFrame, joined
from gleaner.transport.token_stream import StreamSender
from gleaner.transport.wire import Peer

ROUNDS = 4  # turns of every batch size: the machine's variation is in all of them
LONG = 40  # tokens of one measured response
CROWD = 4  # engines at a time at most: a trainer's and three more
CROWD_TURNS = 400
ANSWER_S = 120.0


class Engines:
    """CROWD engine processes, and the process that receives their streams."""

    def __init__(self, config: Config, model_dir: Path, prompt: int) -> None:
        self._made = (config, model_dir, prompt)
        self._slots = config.engine.slots
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> "Engines":
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
        random.Random(0).shuffle(sizes)  # a slow moment does not affect one size alone
        found: list[EngineStep] = []
        for rows in sizes:
            self._pipes[0].send((rows, LONG))
            found += _answer(self._pipes[0])
        return found

    def turns(self, count: int) -> list[float]:
        """Seconds of decode turns with all slots taken, of so many engines at a time."""
        for pipe in self._pipes[:count]:
            pipe.send((self._slots, CROWD_TURNS))
        turns = [step for pipe in self._pipes[:count] for step in _answer(pipe)]
        return [turn.seconds for turn in turns if not turn.prefilled]

    def _start(self, work: Callable[..., None], *arguments: object) -> Connection:
        process, pipe = started(work, *arguments)
        self._processes.append(process)
        return pipe


def started(work: Callable[..., None], *arguments: object) -> tuple[BaseProcess, Connection]:
    """A process of its own that does `work` with its end of the pipe; it dies with this one."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=work, args=(theirs, *arguments), daemon=True)
    process.start()
    return process, ours


def _answer(pipe: Connection) -> list[EngineStep]:
    if not pipe.poll(ANSWER_S):
        raise TimeoutError(f"a measuring process sent nothing for {ANSWER_S:.0f} s")
    found: list[EngineStep] = pipe.recv()
    return found


def _receive(pipe: Connection) -> None:
    """Receive as a manager does: every frame is in a journal before it is acknowledged."""

    async def main(folder: Path) -> None:
        journal = SqliteJournal(folder / "journal.sqlite")
        await journal.open("frames", 1)
        kept: set[asyncio.Task[None]] = set()  # bounded by the windows of the streams

        async def keep(frame: PackedFrame) -> None:
            tickets, tokens, logprobs, flags = joined([frame])
            event = FrameLogged(
                instance=frame.stream,
                incarnation=frame.incarnation,
                seq=frame.seq,
                tickets=tickets,
                tokens=tokens,
                logprobs=logprobs,
                flags=flags,
            )
            await journal.append("frames", 1, [event])
            receiver.acknowledge(frame.stream, frame.incarnation, frame.seq)

        def on_frame(frame: PackedFrame) -> None:
            task = asyncio.get_running_loop().create_task(keep(frame))
            kept.add(task)
            task.add_done_callback(kept.discard)

        receiver = StreamReceiver("tcp://127.0.0.1:0", on_frame, lambda stream, incarnation: 0)
        pipe.send(receiver.local.endpoint)
        await asyncio.Event().wait()

    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(main(Path(folder)))


def _decode(pipe: Connection, config: Config, model_dir: Path, prompt: int, endpoint: str, name: str) -> None:
    """An engine: receives (requests, tokens of each), sends its turns."""
    engine = BuiltinEngine(
        load_checkpoint(model_dir).requires_grad_(False),
        EngineSize(
            slots=config.engine.slots,
            max_tokens=config.engine.max_prompt_tokens + CROWD_TURNS,
            threads=config.engine.threads,
        ),
        eos_token_ids=(),  # so that lengths are as requested
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
