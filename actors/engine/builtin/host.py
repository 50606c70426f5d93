"""`BuiltinHost`: the builtin engine of an instance, one turn at a time.

The worker drives it on one thread. Owns the creation of the engine when the first weights arrive, loading
images from shared memory, and the replies for refusals of the engine. Adapter: uses torch and files; no
actor.
"""

import os
from array import array
from pathlib import Path

from gleaner.actors.engine.builtin.engine import BuiltinEngine
from gleaner.actors.engine.builtin.engine_size import EngineSize
from gleaner.actors.engine.builtin.settings import BuiltinSettings
from gleaner.actors.engine.images.checkpoint_folder import version_name
from gleaner.actors.engine.servers.port import LoadFailed
from gleaner.actors.engine.worker.engine_port import Assignment, CannotServe, EngineFull, EngineStats
from gleaner.actors.engine.worker.port import Refusal, StepCommands, StepResult, StepWork
from gleaner.actors.model.config import qwen3
from gleaner.actors.model.flat_image import BadImage, view_weights
from gleaner.actors.model.meta_init import unmade
from gleaner.actors.protocol.device import Device
from gleaner.actors.protocol.instances import Work
from gleaner.actors.protocol.weights import Fetched
from gleaner.actors.weights.image.reader_locks import let_go, mapped
from gleaner.actors.weights.image.safetensors_file import NotSafetensors

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CONTAINER = "/proc/self/ns/pid"
DENSE = "the builtin engine's models are dense: no token has experts"
NO_SCORES = "top_logprobs, echo with logprobs: the builtin engine does not offer them, leave them out"


class BuiltinHost:
    """An `EngineHost` for the builtin engine.

    Args:
        settings: sections `engine`, `rollout` and `job`.
    """

    def __init__(self, settings: BuiltinSettings) -> None:
        self._settings = settings
        self._engine: BuiltinEngine | None = None
        self._made: BuiltinEngine | None = None  # with the first weights, before it serves
        self._staged: Fetched | None = None
        self._served: Fetched | None = None
        self._half = False

    @property
    def engines(self) -> int:
        """See `EngineHost`."""
        return 1

    @property
    def cache_tokens(self) -> int:
        """See `EngineHost`."""
        return 0

    @property
    def weight_tokens(self) -> int:
        """See `EngineHost`."""
        return 0

    @property
    def device(self) -> Device:
        """See `EngineHost`: the cores of this computer."""
        return cores(self._settings.engine.threads)

    @property
    def halves(self) -> bool:
        """See `EngineHost`: half of its threads are free then; requests stay, as threads share one cache."""
        return self._settings.engine.threads % 2 == 0

    def turn(self, commands: StepCommands) -> StepResult:
        """See `EngineHost`."""
        if commands.half is not None:
            self._half = commands.half
            self._use_threads()
        failed, kept = ("", None) if commands.load is None else self._load(commands.load, commands.keep)
        engine, root = self._engine, b"" if self._served is None else self._served.root
        if engine is None:
            refusals = [Refusal(_tickets(work), "it has no weights yet") for _, work in commands.adds]
            return StepResult(None, refusals, None, b"", idle=True)
        engine.abort(commands.aborts)
        refusals = [
            refusal for version, work in commands.adds for refusal in self._add(engine, version, work)
        ]
        if engine.idle or kept is not None:
            idle, version = engine.idle, engine.weights_version
            return StepResult(None, refusals, version, root, idle, load_failed=failed, kept=kept)
        before = engine.stats()
        output = engine.step()
        work = _work(before, engine.stats())
        return StepResult(output, refusals, engine.weights_version, root, engine.idle, work, failed)

    def hurry(self) -> None:
        """See `EngineHost`: a turn of this host never waits."""

    def close(self) -> None:
        """See `EngineHost`: nothing outlives it."""

    def _add(self, engine: BuiltinEngine, version: int, work: list[Work]) -> list[Refusal]:
        """The tickets that the engine refuses; work that no such engine can serve is refused alone."""
        if version != engine.weights_version:
            return [Refusal(_tickets(work), f"it serves version {engine.weights_version}, not {version}")]
        refusals = [
            Refusal([one.ticket], NO_SCORES if one.experts.scores is not None else DENSE, never=True)
            for one in work
            if one.experts is not None
        ]
        left = [one for one in work if one.experts is None]
        while left:
            try:
                engine.add([_assignment(one) for one in left])
                break
            except CannotServe as problem:
                refusals.append(Refusal([problem.ticket], str(problem), never=True))
                left = [one for one in left if one.ticket != problem.ticket]
            except EngineFull as problem:
                refusals.append(Refusal(_tickets(left), str(problem)))
                break
        return refusals

    def stage(self, fetched: Fetched) -> None:
        """See `EngineHost`. Also makes the engine, when the first weights arrive."""
        self._staged = None
        try:
            image = mapped(fetched.path)
            try:
                if self._engine is None:
                    self._made = self._make(fetched, image)
                else:
                    self._engine.stage_weights(image, fetched.tensors, fetched.version)
            finally:
                let_go(image)
        except (BadImage, NotSafetensors, OSError) as problem:
            raise LoadFailed(f"version {fetched.version} was not loaded: {problem}") from problem
        self._staged = fetched

    def commit(self) -> str:
        """As `TakesWeights.commit`, on the thread of `turn`. Cannot fail: `stage` does everything that
        can.
        """
        self._commit(keep=False)
        return self.version()

    def version(self) -> str:
        """As `TakesWeights.version`; "" before the first."""
        return "" if self._served is None else version_name(self._served)

    def _load(self, fetched: Fetched, keep: bool) -> tuple[str, list[int] | None]:
        """Load the verified image into the engine. Returns "" with the kept tickets, or the reason why the
        weights are unchanged."""
        try:
            if self._staged is None or self._staged.root != fetched.root:
                self.stage(fetched)
        except LoadFailed as problem:
            if self._engine is None:
                raise
            return str(problem), None
        return "", self._commit(keep)

    def _commit(self, keep: bool) -> list[int] | None:
        """The tickets that go on under the staged weights, if that is wanted; all others are aborted."""
        assert self._staged is not None, "stage comes first"
        kept: list[int] | None = None
        if self._engine is None:
            self._engine, self._made = self._made, None
            self._use_threads()
        elif keep:
            kept = self._engine.commit_weights(keep=True)
        else:
            self._engine.drain()  # on-policy: remaining requests of an older version are reported as aborted
            self._engine.commit_weights()
        self._served, self._staged = self._staged, None
        return kept

    def _use_threads(self) -> None:
        threads = self._settings.engine.threads
        if self._engine is not None and threads % 2 == 0:
            self._engine.use_threads(threads // 2 if self._half else threads)

    def _make(self, fetched: Fetched, image: memoryview) -> BuiltinEngine:
        """An engine that serves these weights."""
        config = qwen3(fetched.model_config)
        model = unmade(config).requires_grad_(False)
        view_weights(model, image, fetched.tensors)
        rollout, settings = self._settings.rollout, self._settings.engine
        return BuiltinEngine(
            model,
            EngineSize(
                slots=settings.slots,
                max_tokens=settings.max_prompt_tokens + rollout.max_new_tokens,
                threads=settings.threads,
            ),
            eos_token_ids=config.eos_token_ids,
            weights_version=fetched.version,
            exact=self._settings.job.exact,
        )


def cores(threads: int) -> Device:
    """The processors of this computer, or of its container, as a device with so many of them for an
    engine.
    """
    name = f"{BOOT_ID.read_text().strip()}/{os.stat(CONTAINER).st_ino}"
    return Device(name=f"cores {name}", share=min(1.0, threads / len(os.sched_getaffinity(0))))


def _tickets(work: list[Work]) -> list[int]:
    return [one.ticket for one in work]


def _work(before: EngineStats, after: EngineStats) -> StepWork:
    return StepWork(
        steps=after.steps - before.steps,
        tokens=after.tokens_generated - before.tokens_generated,
        attended=after.tokens_attended - before.tokens_attended,
        prefilled=after.tokens_prefilled - before.tokens_prefilled,
    )


def _assignment(work: Work) -> Assignment:
    return Assignment(
        ticket=work.ticket,
        prompt=array("I", work.prompt),
        prefix=array("I", work.prefix),
        seed=work.seed,
        max_new_tokens=work.max_new_tokens,
        temperature=work.temperature,
        sampling=work.sampling,
    )
