"""Intake of token frames: from the receiver to `JournaledState`, and acknowledgements back.

Owns the frames that arrived and are not entered yet, and the commits not acknowledged yet. All frames of an
instance in one turn of the loop are one journal event, with joined columns; those of all instances are one
append. So the price of a turn is paid once, whatever its number of frames: the higher the load, the less each
frame costs. A frame is acknowledged when its commit is done, once per stream and commit.

Bounds: no more frames wait here than the credit of the streams allows.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from gleaner.actors.rollout.journal.journaled_state import JournaledState, may_go_unheard
from gleaner.actors.rollout.state.effects import Effects
from gleaner.actors.rollout.state.events import FrameLogged
from gleaner.actors.rollout.state.follow_progress import Marks
from gleaner.transport.token_frame import PackedFrame, joined

MAX_JOINED_BYTES = 1 << 20  # of the columns of one event: larger ones are no cheaper per row

StreamKey = tuple[str, int]
"""An instance and its incarnation."""


class Receiver(Protocol):
    """The part of `gleaner.transport.stream_receiver.StreamReceiver` that `Intake` needs."""

    def acknowledge(self, stream: str, incarnation: int, seq: int) -> None:
        """Frames up to `seq` are journaled."""

    def forget(self, stream: str, incarnation: int) -> None:
        """Drop the state of a stream."""


class Followers(Protocol):
    """The readers of the tokens of requests, as `requests.token_followers.Following` keeps them."""

    def entered(self) -> Marks:
        """What was made since the last call; it goes to `committed` when the journal has it."""

    def committed(self, marks: Marks) -> None:
        """These are in the journal."""


class Intake:
    """See the module.

    Give `take` to a receiver, set `receiver` to it, and run `enter` and `acknowledge`.

    Args:
        journaled: receives the frames.
        act: acts on a committed event that changed more than tokens.
        touch: called with an instance that sent frames, and again when these are committed.
        idle: waits for an event of one's own (`Context.idle`).
        token_followers: receives tokens once they are committed.
    """

    def __init__(
        self,
        journaled: JournaledState,
        act: Callable[[Effects], None],
        touch: Callable[[str], None],
        idle: Callable[[asyncio.Event], Awaitable[object]],
        token_followers: Followers,
    ) -> None:
        self._journaled, self._act, self._touch, self._idle = journaled, act, touch, idle
        self._token_followers = token_followers
        self.receiver: Receiver | None = None
        self.fenced = 0  # frames of incarnations that had been given up
        self._waiting: dict[StreamKey, list[PackedFrame]] = {}
        self._came = asyncio.Event()
        self._unacknowledged: deque[
            tuple[asyncio.Future[int], dict[StreamKey, int], list[Effects], Marks]
        ] = deque()
        self._entered = asyncio.Event()
        self._uncommitted: Counter[StreamKey] = Counter()  # turns whose frames are not committed

    def uncommitted(self, stream: str, incarnation: int) -> bool:
        """Whether frames of this stream wait for their commit."""
        return (stream, incarnation) in self._uncommitted

    def take(self, frame: PackedFrame) -> None:
        """Accept a frame; those of each stream arrive in order."""
        key = frame.stream, frame.incarnation
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = [frame]
            self._came.set()
        else:
            waiting.append(frame)

    async def enter(self) -> None:
        """Enter the frames that arrived, turn by turn, forever."""
        while True:
            await self._idle(self._came)
            self._came.clear()
            self.enter_now()

    def enter_now(self) -> None:
        """Apply the frames that arrived, and have them committed with the next group."""
        waiting, self._waiting = self._waiting, {}
        newest: dict[StreamKey, int] = {}
        events: list[FrameLogged] = []
        for (stream, incarnation), frames in waiting.items():
            if self._journaled.state.streams.have(stream, incarnation) is None:
                # The incarnation was given up after its hello. The receiver forgets it and so refuses its
                # next message.
                self.fenced += len(frames)
                if self.receiver is not None:
                    self.receiver.forget(stream, incarnation)
                continue
            self._touch(stream)
            newest[stream, incarnation] = frames[-1].seq
            events += map(_event, _parts(frames))
        if events:
            changes, committed = self._journaled.enter(*events)
            effects = [one for one in changes if one]
            # The first commit that fails ends this actor, and those behind it are awaited no more.
            for key in newest:  # `Counter.update` takes longer than the rest of this method
                self._uncommitted[key] += 1
            self._unacknowledged.append(
                (may_go_unheard(committed), newest, effects, self._token_followers.entered())
            )
            self._entered.set()

    async def acknowledge(self) -> None:
        """Acknowledge entered frames, commit by commit, forever. Raises what a commit raises."""
        while True:
            await self._idle(self._entered)
            self._entered.clear()
            newest: dict[StreamKey, int] = {}
            while self._unacknowledged:
                committed, seqs, changes, marks = self._unacknowledged.popleft()
                await committed
                self._token_followers.committed(marks)
                self._committed(seqs)
                newest.update(seqs)
                for one in changes:
                    self._act(one)
                if not (
                    self._unacknowledged and self._unacknowledged[0][0].done()
                ):  # frames of one commit are done together
                    self._answer(newest)
                    newest = {}

    def _committed(self, streams: dict[StreamKey, int]) -> None:
        for key in streams:
            self._uncommitted[key] -= 1
            if not self._uncommitted[key]:
                del self._uncommitted[key]
            self._touch(key[0])

    def _answer(self, newest: dict[StreamKey, int]) -> None:
        if self.receiver is not None:
            for (stream, incarnation), seq in newest.items():
                self.receiver.acknowledge(stream, incarnation, seq)


def _parts(frames: list[PackedFrame]) -> Iterator[list[PackedFrame]]:
    """Cut where an event would become too large, or a frame is missing."""
    begin = size = 0
    for at, frame in enumerate(frames):
        size += len(frame.columns)
        if at > begin and (size > MAX_JOINED_BYTES or frame.seq != frames[at - 1].seq + 1):
            yield frames[begin:at]
            begin, size = at, len(frame.columns)
    yield frames[begin:] if begin else frames


def _event(frames: list[PackedFrame]) -> FrameLogged:
    tickets, tokens, logprobs, flags = joined(frames)
    last = frames[-1]
    return FrameLogged(
        instance=last.stream,
        incarnation=last.incarnation,
        seq=last.seq,
        frames=len(frames),
        tickets=tickets,
        tokens=tokens,
        logprobs=logprobs,
        flags=flags,
    )
