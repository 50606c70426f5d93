"""What is said to a TransferAgent."""

from typing import ClassVar

import msgspec

from actors.engine.tensor_spec import TensorSpec
from actors.weights.runs import Run
from supervisor import Address, Message
from transport.bulk_frames import Chunk


class Publish(Message, frozen=True):
    """From the trainer on the same host: the finished image of `version` lies in the agent's image store.

    `model_config` is the checkpoint's config.json, for engines that have never seen the model. `announce`:
    instances are to serve it, so the manager is told before it is answered. Repeating it answers the same;
    another image under a published version is refused, and so is one that is announced below a newer one, one
    that holds NaN or infinity (`weights.require_finite`), and one that is announced whose tensors have other
    names, shapes or dtypes than those of the version before, unless `model_changed`.
    """

    version: int
    tensors: tuple[TensorSpec, ...]
    model_config: bytes
    announce: bool = False
    model_changed: bool = False


class MayPublish(Message, frozen=True):
    """From a trainer of one's own on the same host, before it copies anything: may an image of these tensors
    be `version`? Refused with the reason, as `Publish` is."""

    QUESTION: ClassVar[bool] = True

    version: int
    tensors: tuple[TensorSpec, ...]
    model_changed: bool = False


class Published(Message, frozen=True):
    """`root` is the digest of the manifest: the identity of these weights."""

    version: int
    root: bytes


class OpenPart(Message, frozen=True):
    """From a rank of a sharded trainer, to the agent of its host: where is the image of `version` written, of
    which other ranks write the rest? `tensors`: all of the image. Refused as `Publish` is where they are
    others than those of the version before, unless `model_changed`."""

    version: int
    tensors: tuple[TensorSpec, ...]
    image_bytes: int
    model_changed: bool = False


class PartIsOpen(Message, frozen=True):
    """In the last bytes of this file."""

    path: str


class PartWritten(Message, frozen=True):
    """From such a rank: `runs` of the image are written. Answered as `Publish` is, when all ranks' are.

    Args:
        rank, ranks: which of how many; `here` of them are on this host.
        join: the agent that makes the one manifest; all ranks name the same.
    """

    version: int
    tensors: tuple[TensorSpec, ...]
    image_bytes: int
    model_config: bytes
    rank: int
    ranks: int
    here: int
    runs: tuple[Run, ...]
    join: str


class JoinPart(Message, frozen=True):
    """From an agent to the one that joins: the ranks of this host have written these chunks."""

    version: int
    source: str
    tensors: tuple[TensorSpec, ...]
    model_config: bytes
    image_bytes: int
    ranks: int
    members: tuple[int, ...]
    chunks: tuple[Chunk, ...]


class PartLost(Message, frozen=True):
    """From an agent to the one that joins: what its ranks have of `version` will not come; nobody need wait
    for it."""

    version: int
    why: str


class Joined(Message, frozen=True):
    """The manifest (encoded) of what all ranks have written, with `owners`."""

    manifest: bytes


class JoinDelta(Message, frozen=True):
    """From an owner of a part of `version` to the first of them: the table (encoded) of the delta of
    the chunks that it owns; b"": it has none. Refused where one of the owners has none: then there is no
    delta to that version."""

    version: int
    root: bytes
    source: str
    table: bytes


class DeltaJoined(Message, frozen=True):
    """The table (encoded) of what all owners have, with `owners`: each serves its bundles of it."""

    table: bytes


class FindStore(Message, frozen=True):
    """From a trainer of one's own on the same host: where are images written here? Refused where the job has
    a trainer that publishes."""


class StoreIs(Message, frozen=True):
    """`place`: where an image of version 0 would be; the others are beside it. `model_config`: of the newest
    version here, b"" for none."""

    place: str
    model_config: bytes


class Holds(msgspec.Struct, frozen=True, array_like=True):
    """A version that a host has whole: what a delta can start from."""

    version: int
    root: bytes


class EnginePart(msgspec.Struct, frozen=True, array_like=True):
    """What an engine has of a model: of its layers those of pipeline `stage` of `stages`, of its experts
    those of `rank` of `ranks`, in equal parts."""

    stage: int
    stages: int
    rank: int = 0
    ranks: int = 1


class FindSource(Message, frozen=True):
    """From an agent that pulls, to the one that published: whom am I to pull `version` from?

    Asked at the beginning, every half second while it pulls, when something is wrong, and told once more at
    the end; so whoever keeps track may forget everything and knows all again from the next ones.

    Args:
        receiver: who asks, this incarnation of it.
        holds: what a delta could start from; none: it wants the whole image.
        base: what the delta starts from that it pulls by now; -1 for the whole image.
        have_bytes: of what it pulls, verified.
        down_bytes_s: the most at which it came before, 0 where that is not known.
        site: where it is; links between sites are slow.
        current: whom it pulls from.
        excluded: whom it could not pull from.
        liar: whose bytes did not hash to their digest.
        part: of the image, that it pulls from those who pull the same part; None: all of it.
    """

    version: int
    root: bytes
    receiver: Address
    holds: tuple[Holds, ...] = ()
    base: int = -1
    have_bytes: int = 0
    down_bytes_s: float = 0.0
    site: str = ""
    current: str = ""
    excluded: tuple[str, ...] = ()
    liar: str = ""
    part: EnginePart | None = None


class SourceFound(Message, frozen=True):
    """`source` is the agent to pull from; "" for nobody now: ask again soon. `base`: the version that is here
    and that the deltas start from which the source has; -1: pull the whole image."""

    source: str
    base: int


class HostLeaves(Message, frozen=True):
    """From the node agent of the same host: it has notice, or (false) the notice came to nothing."""

    leaves: bool


class ReceiverLeaves(Message, frozen=True):
    """From an agent whose host has notice, to one that published what it has pulled: nobody is to begin to
    pull from `receiver`; or (false) it stays after all, and its next question puts it back among them."""

    receiver: str
    leaves: bool


class Offer(Message, frozen=True):
    """From another agent: I want to pull `version` with this root, as deltas from `base` or (-1) whole. Who
    is still pulling it offers it too, and passes on what comes."""

    version: int
    root: bytes
    base: int = -1


class DeltaLink(msgspec.Struct, frozen=True, array_like=True):
    """One delta of those that lead from the base to the version: its table (encoded), and a capability to
    read its payload, which is served as `key` at the same endpoint."""

    table: bytes
    key: int
    token: bytes


class Offered(Message, frozen=True):
    """The manifest (encoded), the model's config, and a capability to read the image: where, with what. With
    a base: `deltas`, in the order in which they are applied, and no token for the image."""

    manifest: bytes
    model_config: bytes
    endpoint: str
    token: bytes
    deltas: tuple[DeltaLink, ...] = ()


class Fetch(Message, frozen=True):
    """From a worker on the same host: have `version` here, whole and verified, from one of `sources`; or the
    `part` of it that its engine has."""

    version: int
    root: bytes
    sources: tuple[str, ...]
    part: EnginePart | None = None


class DropVersion(Message, frozen=True):
    """From the manager to the publisher of a version, and from a worker to the agent of its host: instances
    could not load these weights, no host will ask for them again. Nothing where they are not here."""

    version: int
    root: bytes


class WhatComes(Message, frozen=True):
    """From a worker on the same host that has asked for this version: what model is it? Answered with a
    `Fetched` as soon as the manifest is here; the image may still be coming."""

    QUESTION: ClassVar[bool] = True

    version: int
    root: bytes


class Fetched(Message, frozen=True):
    """The verified image in shared memory; of a part, `tensors` are those that are there. `pulled_bytes` is 0
    when it was here already. `deltas`: how many were applied to a version that was here; 0 when the whole
    image was pulled."""

    version: int
    root: bytes
    path: str
    tensors: tuple[TensorSpec, ...]
    model_config: bytes
    pulled_bytes: int
    seconds: float
    deltas: int = 0
