"""`StateManager`: sole authority over the trainer's saved states.

These are host copies and checkpoints on disk. Owns the checkpoints and the record of the samples that made
each version (journaled, once a step). The trainer seals a host copy and goes on; this actor makes it durable
in the background, then reports that. It lives in the node agent's process, so it outlives the trainer.
"""

import asyncio

from gleaner.actors.cluster.saved_state import Checkpoints, Copies, Damaged, StateDirFull
from gleaner.actors.names import CONTROLLER, TRAINER
from gleaner.actors.protocol.cluster import (
    LatestState,
    RecordIs,
    RecordOf,
    SaveState,
    StateIs,
    StateSaved,
    StepTrained,
)
from gleaner.supervisor import Actor, Done, Hopeless, Message, Refused, handles

COPY_AGAIN_S = 0.1  # a host copy that is being replaced is read again
SPACE_AGAIN_S = 1.0  # a disk without space for a checkpoint, too
RECORDS = 16  # newest records in memory: more steps than can be lost between two checkpoints


class Rewound(Message, frozen=True):
    """Journaled: the newest state that survived is `step`; records of later steps are void."""

    step: int


class StateLost(Hopeless):
    """No whole state of the training is left. To begin anew would do every step twice."""


class StateManager(Actor):
    """See the module.

    Args:
        copies: host copies, in shared memory.
        checkpoints: durable ones.
    """

    def __init__(self, copies: Copies, checkpoints: Checkpoints) -> None:
        self._copies = copies
        self._store = checkpoints
        self._trained = 0
        self._durable = -1
        self._records: dict[int, StepTrained] = {}
        self._wanted = asyncio.Event()
        self._no_space = ""

    async def on_start(self) -> None:
        async for event in self.ctx.journal.replay():
            if isinstance(event, StepTrained):
                self._note(event)
            elif isinstance(event, Rewound):
                self._trained = event.step
        latest = await self.ctx.offload(self._store.latest)
        for damage in latest.skipped:
            self.ctx.log.warning("checkpoint passed over: %s", damage)
        self._durable = latest.checkpoint.step if latest.checkpoint is not None else -1
        if self._trained < self._durable - 1:
            # Only a step on record becomes durable: a power failure took the records, and left the state. The
            # trainer reports the record of the newest step again.
            await self.ctx.journal.append(Rewound(step=self._durable - 1))
            self._trained = self._durable - 1
        state = await self.latest(LatestState())
        if latest.skipped and not state.path and self._trained > 0:
            raise StateLost(
                f"none of the {len(latest.skipped)} checkpoints in {self._store.directory} is whole, and "
                f"{self._trained} steps were done: restore one from a copy, or begin another run "
                f"({latest.skipped[0]})"
            )
        newest = state.step
        if newest < self._trained:  # the host lost its memory: the job goes on from the checkpoint
            await self.ctx.journal.append(Rewound(step=newest))
            self._trained = newest
        self.ctx.background(self._make_durable(), "checkpoints")
        self._wanted.set()

    @handles(LatestState)
    async def latest(self, message: LatestState) -> StateIs:
        """The newest whole state: the host copy if there is one, else the checkpoint."""
        copy = await self.ctx.offload(self._copies.newest)
        if copy is not None and copy.step >= self._durable:
            return self._state(copy.step, str(copy.path))
        if self._durable >= 0:
            return self._state(self._durable, str(self._store.path(self._durable)))
        return self._state(0, "")

    def _state(self, step: int, path: str) -> StateIs:
        older = [kept for kept in self._store.steps() if kept < self._durable]
        kept = max(older, default=self._durable)
        return StateIs(step=step, path=path, durable_step=self._durable, kept_step=kept)

    @handles(RecordOf)
    async def record_of(self, message: RecordOf) -> RecordIs:
        return RecordIs(record=self._records.get(message.step))

    @handles(SaveState)
    async def save(self, message: SaveState) -> Done:
        trained = message.trained
        if trained is not None and trained.step > self._trained:
            if trained.step != self._trained + 1:
                raise Refused(f"step {trained.step} cannot follow step {self._trained} on record")
            await self.ctx.journal.append(trained)
            self._note(trained)
        self._wanted.set()
        return Done()

    def _note(self, trained: StepTrained) -> None:
        self._trained = trained.step
        self._records[trained.step] = trained
        self._records.pop(trained.step - RECORDS, None)

    async def _make_durable(self) -> None:
        """Bring the newest host copy to disk, again and again; a newer one replaces those that wait."""
        while True:
            await self.ctx.idle(self._wanted)
            self._wanted.clear()
            copy = await self.ctx.offload_aside(self._copies.newest)
            if copy is None or not self._durable < copy.step <= self._trained:
                continue  # not on record yet: its record follows, and the trainer reports it again
            try:
                written = await self.ctx.offload_aside(self._store.adopt, copy)
            except Damaged as problem:  # replaced meanwhile: the trainer reports the new one
                self.ctx.log.info("host copy of step %d: %s", copy.step, problem)
                async with self.ctx.wait("a whole host copy", on=TRAINER, deadline_s=1.0, go_on=True):
                    await asyncio.sleep(COPY_AGAIN_S)
                self._wanted.set()
                continue
            except StateDirFull as problem:  # older ones stay, and the job goes on for a while
                if not self._no_space:
                    self.ctx.log.warning("the state after step %d is not durable yet: %s", copy.step, problem)
                self._no_space = str(problem)
                async with self.ctx.wait("space on a disk", on=str(problem.path), deadline_s=10, go_on=True):
                    await asyncio.sleep(SPACE_AGAIN_S)
                self._wanted.set()
                continue
            self._durable, self._no_space = written.step, ""
            saved = StateSaved(step=written.step, path=str(written.path))
            await self.ctx.tell(CONTROLLER, saved)

    def summary(self) -> dict[str, str | int | float]:
        figures: dict[str, str | int | float] = {"trained": self._trained, "durable": self._durable}
        return {**figures, "suspended": self._no_space} if self._no_space else figures
