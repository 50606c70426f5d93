"""Modelled engine: an `gleaner.actors.engine.worker.port.EngineHost` that decodes by arithmetic.

Owns the effect of a worker's orders on the batch, and the checks that a real engine makes. `tokens`,
`lengths` and `batching` decide which tokens result, how many, and when. An image is read and compared before
it is served: an engine never serves bytes that were not published.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gleaner.actors.engine.servers.port import ServerDied
from gleaner.actors.engine.worker.port import Refusal, StepCommands, StepResult
from gleaner.actors.protocol.instances import Work
from gleaner.actors.protocol.weights import Fetched
from gleaner.sim.models.batching import Entry, Limits
from gleaner.sim.models.clock import Clock
from gleaner.sim.models.copies import Copies
from gleaner.sim.models.engine_cost import EngineCost
from gleaner.sim.models.lengths import LengthLaw
from gleaner.sim.models.load_faults import WHY
from gleaner.sim.models.tokens import request_key, request_origin
from gleaner.sim.models.weight_bytes import BrokenImage, weights_of


@dataclass(frozen=True, slots=True)
class Engine:
    """What is modelled. cost, limits: of each of `copies` copies of the model. load_s: of one load of
    weights. max_tokens: of prompt and response together, in rows, as in the settings. tokens_follow_inputs:
    other weights, prompts and sampling parameters give other tokens and log-probs, as with a real model;
    otherwise they follow from the seed alone. known_by: number of leading prompt rows that
    identify a prompt, None: all. dies: the reason of its death at the next load of weights, "" if it does not
    die. weight_tokens: as in `EnginePace`, in tokens of the model. launch_s: of its start, at the first load.
    """

    cost: EngineCost
    limits: Limits
    law: LengthLaw
    vocabulary: int
    load_s: float
    max_tokens: int
    max_pending: int = 4096
    tokens_follow_inputs: bool = False
    copies: int = 1
    known_by: int | None = None
    dies: str = ""
    weight_tokens: int = 0
    launch_s: float = 0.0

    def prompt_id(self, prompt: bytes) -> int:
        """A number that identifies a prompt (u32, raw)."""
        known = prompt if self.known_by is None else prompt[: 4 * self.known_by]
        return int.from_bytes(hashlib.blake2b(known, digest_size=8).digest(), "little")

    def length(self, seed: int, prompt: bytes, limit: int) -> int:
        """Rows of a whole response."""
        return self.law.length(seed, self.prompt_id(prompt), limit)


class SimEngineHost:
    """See the module.

    Args:
        engine: what is modelled.
        memory: the host's, which has the images.
        clock: of this process.
        load_fails: whether a load of this version fails, called once a load; not for the first weights.
        spoil: the result of a turn as it is returned.
    """

    def __init__(
        self,
        engine: Engine,
        memory: Mapping[Path, bytes],
        clock: Clock,
        load_fails: Callable[[int], bool] = lambda version: False,
        spoil: Callable[[StepResult], StepResult] = lambda result: result,
    ) -> None:
        self._engine, self._memory, self._clock, self._load_fails = engine, memory, clock, load_fails
        self._spoil = spoil
        self.batch = Copies(engine.copies, engine.cost, engine.limits, vocabulary=engine.vocabulary)
        self._version: int | None = None
        self._root = b""
        self._weights = b""
        self._origins: dict[int, int] = {}  # by ticket, of requests added since the last load

    @property
    def engines(self) -> int:
        """See `EngineHost`."""
        return self._engine.copies

    @property
    def cache_tokens(self) -> int:
        """See `EngineHost`."""
        return self._engine.limits.cache_tokens // self._engine.limits.token_scale

    @property
    def weight_tokens(self) -> int:
        """See `EngineHost`."""
        return self._engine.weight_tokens // self._engine.limits.token_scale

    @property
    def device(self) -> None:
        """See `EngineHost`: each modelled engine has its own."""

    @property
    def halves(self) -> bool:
        """See `EngineHost`: no copy is cut."""
        return self._engine.copies % 2 == 0

    def stage(self, fetched: Fetched) -> None:
        """See `EngineHost`: there is nothing to prepare."""

    def turn(self, commands: StepCommands) -> StepResult:
        """See `EngineHost`. Raises `BrokenImage` for an image that cannot have been published."""
        kept, failed = None, ""
        if commands.half is not None:
            self.batch.serve(self._engine.copies // 2 if commands.half else self._engine.copies)
        if (
            commands.load is not None
            and self._version is not None
            and self._load_fails(commands.load.version)
        ):
            failed = WHY
        elif commands.load is not None:
            kept = self._load(commands.load, commands.keep)
        if self._version is None:
            refusals = [Refusal(_tickets(work), "it has no weights yet") for _, work in commands.adds]
            return StepResult(None, refusals, None, b"", idle=True)
        self.batch.abort(commands.aborts)
        refusals = [
            Refusal(_tickets(work), why)
            for version, work in commands.adds
            if (why := self._add(version, work)) is not None
        ]
        if self.batch.idle or kept is not None:
            idle = self.batch.idle
            return StepResult(None, refusals, self._version, self._root, idle, load_failed=failed, kept=kept)
        before = self.batch.work
        output, seconds = self.batch.turn()
        self._clock.spend(seconds)
        work = self.batch.work.less(before)
        idle = self.batch.idle
        return self._spoil(
            StepResult(
                output,
                refusals,
                self._version,
                self._root,
                idle,
                work,
                load_failed=failed,
                vocabulary=self._engine.vocabulary,
            )
        )

    def hurry(self) -> None:
        """See `EngineHost`: a turn of this one never waits."""

    def close(self) -> None:
        """See `EngineHost`: nothing outlives it."""

    def _load(self, fetched: Fetched, keep: bool) -> list[int] | None:
        """The tickets that it keeps. Raises `ServerDied` where the model demands it."""
        if self._engine.dies:
            raise ServerDied(self._engine.dies)
        launch_s = self._engine.launch_s if self._version is None else 0.0
        self._clock.spend(launch_s + self._engine.load_s)
        image = self._memory.get(Path(fetched.path))
        if image is None:
            raise BrokenImage(f"{fetched.path} is gone: it was evicted while it was to be loaded")
        self._weights = weights_of(image)
        self._version, self._root = fetched.version, fetched.root
        kept = self.batch.retract(lambda ticket: self._key(self._origins[ticket])) if keep else None
        if kept is None:
            self.batch.drain()
        self._origins = {ticket: self._origins[ticket] for ticket in kept or ()}
        return kept

    def _add(self, version: int, work: list[Work]) -> str | None:
        """Take the work, or return why none of it is taken."""
        if version != self._version:
            return f"it serves version {self._version}, not {version}"
        batch, engine = self.batch, self._engine
        if batch.pending + len(work) > engine.max_pending:
            return f"{batch.pending} requests wait and {len(work)} more came, {engine.max_pending} fit"
        origins = {one.ticket: self._origin(one) for one in work}
        entries = [self._entry(one, origins[one.ticket]) for one in work]
        for one, entry in zip(work, entries, strict=True):
            if batch.knows(entry.ticket):
                return f"ticket {entry.ticket}: this ticket is being served already"
            if not entry.prompt:
                return f"ticket {entry.ticket}: the prompt is empty: there is nothing to continue"
            if entry.made >= one.max_new_tokens:
                return f"ticket {entry.ticket}: its prefix has all of its {one.max_new_tokens} tokens already"
            longest = entry.prompt + one.max_new_tokens
            if (
                longest > engine.max_tokens
                or longest * engine.limits.token_scale > engine.limits.cache_tokens
            ):
                return f"ticket {entry.ticket}: {longest} tokens are more than the engine holds"
        batch.add(entries)
        self._origins |= origins
        if len(self._origins) > 2 * engine.max_pending:
            self._origins = {ticket: one for ticket, one in self._origins.items() if batch.knows(ticket)}
        return None

    def _entry(self, work: Work, origin: int) -> Entry:
        engine, made = self._engine, len(work.prefix) // 4
        return Entry(
            ticket=work.ticket,
            key=self._key(origin),
            prompt_id=engine.prompt_id(work.prompt),
            prompt=len(work.prompt) // 4,
            made=made,
            end=max(made + 1, engine.length(work.seed, work.prompt, work.max_new_tokens)),
        )

    def _origin(self, work: Work) -> int:
        if not self._engine.tokens_follow_inputs:
            return work.seed
        return request_origin(work.seed, work.prompt, work.temperature, work.sampling)

    def _key(self, origin: int) -> int:
        return request_key(origin, self._weights if self._engine.tokens_follow_inputs else b"")


def _tickets(work: list[Work]) -> list[int]:
    return [one.ticket for one in work]
