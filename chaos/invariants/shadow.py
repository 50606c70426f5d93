"""Shadow: second copy of the token log, built from the journal by separate code.

Owns the tokens of each request, from the events in the order of their commits. It has the rules of
`gleaner.actors.rollout.state.state` in their shortest form and shares no line with it, so a mistake there is
not repeated here. An event that the manager journaled and refused must be refused here for a separate reason;
otherwise it is a difference.
"""

import hashlib
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.sampling_params import Sampling
from gleaner.actors.rollout.journal.journaled_state import BatchWeights, ManagerSnapshot
from gleaner.actors.rollout.state.events import (
    BatchReleased,
    Dispatched,
    FrameLogged,
    GroupsAdded,
    GroupsClosed,
    GroupsDropped,
    InstanceGone,
    InstanceJoined,
    RequestsDue,
    SampleAgain,
    Scored,
    TicketsRenewed,
    TicketsRevoked,
    VersionPublished,
)
from gleaner.supervisor import Message

Fault = tuple[str, str]
"""An invariant, and the violation."""
FINISHED, ABORTED, NO_TOKEN = 2, 4, 8
"""Flags of a row (docs/protocol.md); written again here on purpose."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a group was submitted with. prompt: u32, raw."""

    split: str
    index: int
    prompt: bytes
    temperature: float = 1.0
    sampling: Sampling | None = None


@dataclass(slots=True)
class ShadowRequest:
    """One request according to the journal."""

    id: str
    batch: str
    seed: int
    version: int
    limit: int
    asked: Asked
    tokens: "array[int]" = field(default_factory=lambda: array("I"))
    holder: tuple[str, int, int] | None = None  # instance, incarnation, ticket
    decodes: bool = False  # its instance has sent a row of it
    finished: bool = False
    score: float | None = None  # also of an unscored sample
    judged: bool = False  # it has its verdict
    attempts: int = 0
    dropped: bool = False  # it does not count, and no step may train on it
    again: int = 0
    due: bool = False  # its deadline has passed
    problem: int | None = None  # of the training split
    min_version: int | None = None
    under: tuple[int, bytes | None] = (0, None)  # version and root of its newest dispatch
    made: list[tuple[int, int, bytes | None]] = field(default_factory=list)
    """(position, version, root) for each span: the version that made the tokens from that position on, with
    its root (None: the journal does not contain it)."""

    def admits(self, version: int) -> bool:
        """Whether it may have tokens of this version."""
        return version == self.version if self.min_version is None else version >= self.min_version

    @property
    def crc(self) -> int:
        """Checksum of the tokens, as in a ledger."""
        return zlib.crc32(self.tokens.tobytes())


@dataclass(slots=True)
class _Stream:
    incarnation: int
    last_seq: int = 0
    gone: bool = False
    tickets: dict[int, str] = field(default_factory=dict)  # live ones
    past: set[int] = field(default_factory=set)  # taken back: later rows under them are dropped
    newest_ticket: int = 0


def sample_of(request: str) -> int:
    """The number of a request's sample in its group."""
    return int(request.rpartition("/")[2].partition("~")[0])


class Shadow:
    """Apply every committed event of the stream `rollout/manager` to it."""

    def __init__(self) -> None:
        self.requests: dict[str, ShadowRequest] = {}
        self.versions: dict[str, int] = {}  # of open batches
        self.roots: dict[str, bytes] = {}  # of their weights
        self.published: dict[int, bytes] = {}  # roots of the versions that the trainer has now
        self.streams: dict[str, _Stream] = {}
        self.collected = 0
        self.handed_out: set[str] = set()  # requests of open batches that the trainer was given
        self._batches: dict[str, list[str]] = {}
        self._events: dict[str, BatchSubmitted] = {}

    def apply(self, event: Message) -> Iterator[Fault]:
        """Apply an event; return its violations, given the events before it: the invariant, and a text."""
        match event:
            case BatchSubmitted():
                yield from self._submitted(event)
            case BatchReleased():
                self._released(event.batch)
            case InstanceJoined():
                yield from self._joined(event)
            case InstanceGone():
                self._gone(event.instance, event.incarnation)
            case Dispatched():
                yield from self._dispatched(event)
            case TicketsRevoked():
                self._revoked(event)
            case TicketsRenewed():
                yield from self._renewed(event)
            case FrameLogged():
                yield from self._frame(event)
            case Scored():
                self._scored(event)
            case GroupsAdded():
                yield from self._added(event)
            case GroupsDropped():
                yield from self._dropped(event)
            case GroupsClosed():
                self._closed(event)
            case SampleAgain():
                self._again(event)
            case RequestsDue():
                for name in event.requests:
                    if (request := self.requests.get(name)) is not None:
                        request.due = True
                        self._left(request)
            case VersionPublished():
                self.published = {
                    version: root for version, root in self.published.items() if version < event.version
                } | {event.version: event.root}
            case BatchWeights():
                if event.batch in self._batches:
                    self.roots.setdefault(event.batch, event.weights.root)
            case ManagerSnapshot() | _:
                return  # repeats the events before it

    def journaled(self, stream: str, incarnation: int) -> int | None:
        """The last frame of this incarnation that is in the journal; None for a dead one."""
        known = self.streams.get(stream)
        return None if known is None or known.incarnation != incarnation else known.last_seq

    def group(self, batch: str, number: int) -> list[ShadowRequest]:
        """The requests of a group that count, in the order of its samples; without those that were generated
        again."""
        names = [name for name in self._batches.get(batch, ()) if name.startswith(f"{batch}/{number}/")]
        there = (self.requests[name] for name in names)
        return sorted((one for one in there if not one.dropped), key=lambda one: sample_of(one.id))

    def first_responses(self, batch: str, number: int) -> list[ShadowRequest]:
        """The first request of each sample of a group, whether it counts or not."""
        names = [name for name in self._batches.get(batch, ()) if name.startswith(f"{batch}/{number}/")]
        return [self.requests[name] for name in names if not self.requests[name].again]

    def _submitted(self, event: BatchSubmitted) -> Iterator[Fault]:
        if event.batch in self._batches:
            return  # submitted again: the first one counts
        self._batches[event.batch] = []
        self._events[event.batch] = event
        self.versions[event.batch] = event.version
        yield from self._open(event, 0, event.prompts)

    def _open(self, event: BatchSubmitted, first: int, prompts: tuple[Prompt, ...]) -> Iterator[Fault]:
        for group, prompt in enumerate(prompts, first):
            tokens = array("I", prompt.tokens).tobytes()
            asked = Asked(prompt.split, prompt.index, tokens, event.temperature, event.sampling)
            for sample, seed in enumerate(prompt.seeds):
                name = f"{event.batch}/{group}/{sample}"
                if name in self.requests:
                    yield "I1", f"{name} is open twice"
                self.requests[name] = ShadowRequest(
                    name,
                    event.batch,
                    seed,
                    event.version,
                    event.max_new_tokens,
                    asked,
                    min_version=event.min_version,
                    problem=prompt.index if prompt.split == "train" else None,
                )
                self._batches[event.batch].append(name)

    def _added(self, event: GroupsAdded) -> Iterator[Fault]:
        batch = self._events.get(event.batch)
        if batch is not None and f"{event.batch}/{event.first}/0" not in self.requests:
            yield from self._open(batch, event.first, event.prompts)

    def _dropped(self, event: GroupsDropped) -> Iterator[Fault]:
        for group in event.groups:
            for name in self._batches.get(event.batch, ()):
                if name.startswith(f"{event.batch}/{group}/"):
                    self._drop(self.requests[name])
                    if name in self.handed_out:
                        yield "I1", f"{name} was dropped after it had been handed out"

    def _closed(self, event: GroupsClosed) -> None:
        for group, samples in zip(event.groups, event.samples, strict=False):
            for request in self.group(event.batch, group):
                if sample_of(request.id) not in samples:
                    self._drop(request)

    def _again(self, event: SampleAgain) -> None:
        past = self.requests.get(event.request)
        if past is None or past.dropped or not past.finished or past.judged:
            return
        self._drop(past)
        name = f"{event.request.partition('~')[0]}~{past.again + 1}"
        first = self.requests[event.request.partition("~")[0]].seed
        digest = hashlib.blake2b(f"{first}/again/{past.again + 1}".encode(), digest_size=8).digest()
        self.requests[name] = ShadowRequest(
            name,
            past.batch,
            int.from_bytes(digest) >> 1,
            past.version,
            past.limit,
            past.asked,
            again=past.again + 1,
            min_version=past.min_version,
            problem=past.problem,
        )
        self._batches[past.batch].append(name)

    def _drop(self, request: ShadowRequest) -> None:
        request.dropped = True
        if request.holder is not None:
            instance, _incarnation, ticket = request.holder
            del self.streams[instance].tickets[ticket]
            self.streams[instance].past.add(ticket)
            request.holder = None

    def _released(self, batch: str) -> None:
        closed = set(self._batches.pop(batch, ()))
        self._events.pop(batch, None)
        self.handed_out -= closed
        self.versions.pop(batch, None)
        self.roots.pop(batch, None)
        for name in closed:
            self.requests.pop(name, None)
        for stream in self.streams.values():
            for ticket in [ticket for ticket, name in stream.tickets.items() if name in closed]:
                del stream.tickets[ticket]

    def _joined(self, event: InstanceJoined) -> Iterator[Fault]:
        known = self.streams.get(event.instance)
        if known is not None and known.incarnation >= event.incarnation:
            return  # refused, or registered again
        if known is not None:
            self._gone(event.instance, known.incarnation)
        self.streams[event.instance] = _Stream(event.incarnation)
        yield from ()

    def _gone(self, instance: str, incarnation: int) -> None:
        known = self.streams.get(instance)
        if known is None or known.incarnation != incarnation:
            return
        known.gone = True
        for name in known.tickets.values():
            self.requests[name].holder = None
            self._left(self.requests[name])
        known.tickets.clear()
        known.past.clear()

    def _dispatched(self, event: Dispatched) -> Iterator[Fault]:
        known = self._alive(event.instance, event.incarnation)
        for ticket, name in zip(event.tickets, event.requests, strict=True):
            request = self.requests.get(name)
            if known is None or request is None:
                continue  # overtaken by an end or a release: no instance has it
            if request.holder is not None:
                yield "I1", f"{name} was dispatched to {event.instance} while {request.holder[0]} has it"
            elif request.finished or request.dropped:
                what = "finished" if request.finished else "dropped"
                yield "I1", f"{name} was dispatched to {event.instance} and is {what}"
            elif not request.admits(event.version):
                least = "" if request.min_version is None else f" (from {request.min_version} on)"
                yield (
                    "I3",
                    f"{name} of version {request.version}{least} was dispatched under {event.version}",
                )
            elif request.min_version is not None and event.version not in self.published:
                yield "I3", f"{name} was dispatched under version {event.version}, which the trainer has not"
            elif ticket <= known.newest_ticket:
                yield "I4", f"ticket {ticket} of {event.instance}#{event.incarnation} was given twice"
            else:
                known.newest_ticket = ticket
                known.tickets[ticket] = name
                request.attempts += 1
                request.holder, request.decodes = (event.instance, event.incarnation, ticket), False
                exact = request.min_version is None
                root = self.roots.get(request.batch) if exact else self.published[event.version]
                request.under = (event.version, root)

    def _revoked(self, event: TicketsRevoked) -> None:
        known = self._alive(event.instance, event.incarnation)
        for ticket in event.tickets if known is not None else ():
            assert known is not None
            name = known.tickets.pop(ticket, None)
            if name is not None:
                known.past.add(ticket)
                self.requests[name].holder = None
                self._left(self.requests[name])

    def _renewed(self, event: TicketsRenewed) -> Iterator[Fault]:
        """The same instance continues them with other weights."""
        known = self._alive(event.instance, event.incarnation)
        for ticket in event.tickets if known is not None else ():
            assert known is not None
            name = known.tickets.get(ticket)
            if name is None:
                yield "I4", f"ticket {ticket} of {event.instance} went on, and does not count"
                continue
            request = self.requests[name]
            if request.min_version is None or event.version < request.min_version:
                yield "I3", f"{name} of version {request.version} went on under {event.version}"
            elif event.version not in self.published:
                yield "I3", f"{name} went on under version {event.version}, which the trainer has not"
            else:
                request.attempts += 1
                request.under = (event.version, self.published[event.version])

    def _frame(self, event: FrameLogged) -> Iterator[Fault]:
        where = f"frame {event.seq} of {event.instance}#{event.incarnation}"
        known = self.streams.get(event.instance)
        if known is None or known.incarnation != event.incarnation or known.gone:
            yield "I4", f"{where} was journaled after that incarnation was given up"
            return
        if event.seq - event.frames != known.last_seq:
            yield "I2", f"{where} was journaled after frame {known.last_seq}"
            return
        known.last_seq = event.seq
        tickets, tokens = array("I", event.tickets), array("I", event.tokens)
        for ticket, token, flags in zip(tickets, tokens, event.flags, strict=True):
            name = known.tickets.get(ticket)
            if name is not None:
                self._row(known, self.requests[name], ticket, token, flags)
            elif ticket in known.past and flags & (FINISHED | ABORTED):
                known.past.discard(ticket)

    def _row(self, stream: _Stream, request: ShadowRequest, ticket: int, token: int, flags: int) -> None:
        request.decodes = True
        if not flags & (ABORTED | NO_TOKEN):
            if not request.made or request.made[-1][1:] != request.under:
                request.made.append((len(request.tokens), *request.under))
            request.tokens.append(token)
            self.collected += 1
        request.finished = bool(flags & FINISHED) or len(request.tokens) >= request.limit
        if request.finished or flags & ABORTED:
            del stream.tickets[ticket]
            request.holder = None
            self._left(request)

    @staticmethod
    def _left(request: ShadowRequest) -> None:
        """No instance decodes it any more: after its deadline that is its end."""
        if request.due and request.holder is None and not request.dropped:
            request.finished = True

    def _scored(self, event: Scored) -> None:
        request = self.requests.get(event.request)
        if request is None or request.dropped:  # a late verdict is not counted
            return
        if request.finished and not request.judged:
            request.score, request.judged = event.score, True

    def _alive(self, instance: str, incarnation: int) -> _Stream | None:
        known = self.streams.get(instance)
        return None if known is None or known.gone or known.incarnation != incarnation else known
