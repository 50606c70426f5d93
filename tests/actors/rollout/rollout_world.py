"""Engines around a `RolloutState` for tests.

They decode a known function of (request, position). The tokens are known in advance, so a gap, an overlap
or a token of another request in a log is found at once.
"""

import random
import struct
import zlib
from array import array
from dataclasses import dataclass, field

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.events import (
    Dispatched,
    FrameLogged,
    GroupsTaken,
    InstanceGone,
    InstanceJoined,
    Scored,
    TicketsRevoked,
)
from gleaner.actors.rollout.state.request_log import RequestLog
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.rollout.state.tickets import ABORTED, FINISHED, FIRST, NO_TOKEN
from gleaner.supervisor import Message

MAX_NEW = 6


def true_token(request: str, position: int) -> int:
    return zlib.crc32(f"{request}@{position}".encode())


def true_length(request: str) -> int:
    return 1 + zlib.crc32(request.encode()) % MAX_NEW


def tokens_of(log: RequestLog) -> list[int]:
    return memoryview(log.tokens_bytes()).cast("I").tolist()


def true_crc(log: RequestLog) -> int:
    return zlib.crc32(array("I", [true_token(log.id, position) for position in range(len(log))]).tobytes())


def logprobs_of(log: RequestLog) -> list[float]:
    return memoryview(log.logprobs_bytes()).cast("f").tolist()


def submission(batch: str = "step-1", version: int = 1, groups: int = 2, samples: int = 2) -> BatchSubmitted:
    prompts = tuple(
        Prompt(split="train", index=group, tokens=(1, 2, group), seeds=tuple(range(samples)))
        for group in range(groups)
    )
    return BatchSubmitted(batch=batch, version=version, prompts=prompts, max_new_tokens=MAX_NEW)


def frame(
    instance: str,
    incarnation: int,
    seq: int,
    rows: list[tuple[int, int, float, int]],
    version: int | None = None,
) -> FrameLogged:
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    return FrameLogged(
        instance=instance,
        incarnation=incarnation,
        seq=seq,
        tickets=struct.pack(f"<{len(rows)}I", *columns[0]),
        tokens=struct.pack(f"<{len(rows)}I", *columns[1]),
        logprobs=struct.pack(f"<{len(rows)}f", *columns[2]),
        flags=bytes(columns[3]),
        version=version,
    )


@dataclass
class Engine:
    """The work of an instance: tickets at their positions, and frames made but not yet delivered."""

    name: str
    incarnation: int
    seq: int = 0
    tickets: dict[int, tuple[str, int, bool]] = field(default_factory=dict)
    made: list[FrameLogged] = field(default_factory=list)

    def frame(self, rows: list[tuple[int, int, float, int]]) -> None:
        self.seq += 1
        self.made.append(frame(self.name, self.incarnation, self.seq, rows))

    def decode(self) -> None:
        rows = []
        for ticket, (request, position, fresh) in list(self.tickets.items()):
            last = position + 1 >= true_length(request)
            flags = (FIRST if fresh else 0) | (FINISHED if last else 0)
            rows.append((ticket, true_token(request, position), -0.5 * position, flags))
            self.tickets[ticket] = (request, position + 1, False)
            if last:
                del self.tickets[ticket]
        self.frame(rows)

    def drain(self) -> None:
        self.frame([(ticket, 0, 0.0, ABORTED | NO_TOKEN) for ticket in self.tickets])
        self.tickets.clear()


class World:
    """Drives a `RolloutState` by random events that can really happen, and keeps every event."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.state = RolloutState()
        self.events: list[Message] = []
        self.engines: dict[str, Engine] = {}
        self.handed: list[tuple[int, int]] = []  # (taker, group)
        self.taker = 1
        self.incarnations = 0
        self.old_frames: list[FrameLogged] = []
        self.started: list[str] = []

    def apply(self, event: Message) -> Effects:
        self.events.append(event)
        changes = self.state.apply(event)
        assert self.state.check() == []
        return changes

    def join(self) -> None:
        name = self.rng.choice(["spot-1", "spot-2", "reserved-0"])
        self.incarnations += 1
        self.engines[name] = Engine(name, self.incarnations)
        self.apply(InstanceJoined(instance=name, incarnation=self.incarnations))

    def dispatch(self) -> None:
        queued = self.state.log.queued()
        if not queued or not self.engines:
            return
        engine = self.rng.choice(list(self.engines.values()))
        chosen = queued[: self.rng.randint(1, 3)]
        first = self.state.streams.next_ticket(engine.name, engine.incarnation)
        for ticket, log in enumerate(chosen, first):
            engine.tickets[ticket] = (log.id, len(log), True)
        self.apply(
            Dispatched(
                instance=engine.name,
                incarnation=engine.incarnation,
                version=1,
                tickets=tuple(range(first, first + len(chosen))),
                requests=tuple(log.id for log in chosen),
            )
        )

    def decode(self) -> None:
        if self.engines:
            engine = self.rng.choice(list(self.engines.values()))
            engine.drain() if self.rng.random() < 0.1 else engine.decode()

    def deliver(self) -> None:
        for engine in self.engines.values():
            count = self.rng.randint(0, len(engine.made))
            if count < len(engine.made):  # a later frame arrives first: a gap that must be resent
                self.apply(engine.made[-1]) if count != len(engine.made) - 1 else None
            for made in engine.made[:count]:
                self.apply(made)
                self.old_frames.append(made)
            del engine.made[:count]

    def deliver_again(self) -> None:
        if self.old_frames:
            changes = self.apply(self.rng.choice(self.old_frames))
            assert changes.refused

    def kill(self) -> None:
        if self.engines:
            engine = self.engines.pop(self.rng.choice(list(self.engines)))
            self.old_frames += engine.made
            gone = InstanceGone(instance=engine.name, incarnation=engine.incarnation, cause="SIGKILL")
            self.apply(gone)

    def revoke(self) -> None:
        if self.engines:
            engine = self.rng.choice(list(self.engines.values()))
            tickets = tuple(ticket for ticket in engine.tickets if self.rng.random() < 0.5)
            revoked = TicketsRevoked(instance=engine.name, incarnation=engine.incarnation, tickets=tickets)
            self.apply(revoked)

    def score(self) -> None:
        for log in self.state.log.unscored():
            self.apply(Scored(request=log.id, score=1.0))

    def take(self) -> None:
        if self.rng.random() < 0.2:
            self.taker += 1
        for batch in list(self.state.log.batches.values()):
            groups = tuple(batch.ready(self.taker))
            self.handed += [(self.taker, group) for group in groups]
            self.apply(GroupsTaken(batch=batch.name, taker=self.taker, groups=groups))

    def submission(self) -> BatchSubmitted:
        return submission()

    def run(self, moves: int) -> None:
        """A random history, then every event that is needed to end it."""
        self.apply(self.submission())
        kinds = [self.join, self.dispatch, self.decode, self.decode, self.deliver]
        kinds += [self.deliver_again, self.kill, self.revoke, self.score, self.take]
        for _ in range(moves):
            self.rng.choice(kinds)()

    def finish(self) -> None:
        for _ in range(200):
            if all(log.score is not None for log in self.state.log.requests.values()):
                break
            if not self.engines:
                self.join()
            self.dispatch()
            for engine in self.engines.values():
                engine.decode()
                while engine.made:
                    self.apply(engine.made.pop(0))
            self.score()
        self.take()
