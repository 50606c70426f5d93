"""Messages to a TransferAgent, and its replies."""

from typing import ClassVar

import msgspec

from gleaner.actors.model.byte_ranges import Run
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.supervisor import Address, Message
from gleaner.transport.bulk_frames import Chunk


class Publish(Message, frozen=True):
    """From the trainer on the same host: the image of `version` is finished in the agent's image store.

    `model_config` is the checkpoint's config.json, for engines that have not loaded the model before.
    `announce`: instances should serve the version, so the manager is notified before the reply. A repeated
    message gets the same reply. Another image under a published version is refused. An image that holds NaN
    or infinity is refused (`weights.require_finite`), and so is an announced version below a newer one. An
    announced version whose tensors have other names, shapes or dtypes than the previous version is refused,
    unless `model_changed`.
    """

    version: int
    tensors: tuple[TensorSpec, ...]
    model_config: bytes
    announce: bool = False
    model_changed: bool = False


class MayPublish(Message, frozen=True):
    """From a user's own trainer on the same host, before it copies anything: may an image of these tensors be
    `version`? Refused with the reason, as `Publish` is."""

    QUESTION: ClassVar[bool] = True

    version: int
    tensors: tuple[TensorSpec, ...]
    model_changed: bool = False


class Published(Message, frozen=True):
    """`root` is the digest of the manifest: the identity of these weights."""

    version: int
    root: bytes


class OpenPart(Message, frozen=True):
    """From a rank of a sharded trainer to the agent of its host: requests the file for the image of
    `version`, of which other ranks write the rest. `tensors`: all of the image. Refused as `Publish` is if
    they differ from those of the previous version, unless `model_changed`."""

    version: int
    tensors: tuple[TensorSpec, ...]
    image_bytes: int
    model_changed: bool = False


class PartIsOpen(Message, frozen=True):
    """The image is the last bytes of this file."""

    path: str


class PartWritten(Message, frozen=True):
    """From such a rank: `runs` of the image are written. Answered as `Publish` is, when all ranks have
    written theirs.

    Args:
        rank, ranks: index and number of ranks; `here` of them are on this host.
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
    """From an agent to the joining one: its ranks' part of `version` will not arrive, so no agent should wait
    for it."""

    version: int
    why: str


class Joined(Message, frozen=True):
    """The manifest (encoded) of what all ranks have written, with `owners`."""

    manifest: bytes


class JoinDelta(Message, frozen=True):
    """From an owner of a part of `version` to the first owner: the table (encoded) of the delta of its own
    chunks; b"": it has none. Refused if any owner has none, because there is then no delta to that version.
    """

    version: int
    root: bytes
    source: str
    table: bytes


class DeltaJoined(Message, frozen=True):
    """The table (encoded) of all owners' parts, with `owners`: each serves its own bundles."""

    table: bytes


class FindStore(Message, frozen=True):
    """From a user's own trainer on the same host: requests the folder of the images. Refused if the job has a
    trainer that publishes."""


class StoreIs(Message, frozen=True):
    """`place`: the path of an image of version 0; the others are beside it. `model_config`: of the newest
    version here, b"" for none."""

    place: str
    model_config: bytes


class Holds(msgspec.Struct, frozen=True, array_like=True):
    """A version that a host has whole, and that a delta can start from."""

    version: int
    root: bytes


class EnginePart(msgspec.Struct, frozen=True, array_like=True):
    """The part of a model that an engine has: the layers of pipeline `stage` of `stages`, and the experts of
    `rank` of `ranks`, in equal parts."""

    stage: int
    stages: int
    rank: int = 0
    ranks: int = 1


class FindSource(Message, frozen=True):
    """From an agent that pulls `version` to its publisher: requests the source to pull from.

    Sent at the start, every half second during the pull, after an error, and once at the end. So the
    publisher may lose its state and rebuild it from the next requests.

    Args:
        receiver: the requester, in this incarnation.
        holds: the versions that a delta could start from; none: it wants the whole image.
        base: the start of the delta that it is pulling; -1 for the whole image.
        have_bytes: verified bytes of the pull.
        down_bytes_s: the highest receive rate so far; 0 if unknown.
        site: of the receiver; links between sites are slow.
        current: the source that it pulls from.
        excluded: sources that it could not pull from.
        liar: the source whose bytes did not match their digest.
        part: of the image; it pulls from receivers of the same part. None: all of it.
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
    """`source` is the agent to pull from; "" if there is none now: ask again soon. `base`: the version that
    is here and that the source's deltas start from; -1: pull the whole image."""

    source: str
    base: int


class HostLeaves(Message, frozen=True):
    """From the node agent of the same host: the host has an eviction notice, or (false) the notice was
    withdrawn.
    """

    leaves: bool


class ReceiverLeaves(Message, frozen=True):
    """From an agent whose host has notice, to a publisher whose version it pulled: no new pull from
    `receiver` may begin. (false): it stays after all, and its next request makes it a source again."""

    receiver: str
    leaves: bool


class Offer(Message, frozen=True):
    """From another agent: requests `version` with this root, as deltas from `base` or (-1) whole. An agent
    that is still pulling it offers it too, and passes on its chunks."""

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
    """The manifest (encoded), the model's config, and a capability to read the image (endpoint, key and
    token). With a base: `deltas`, in the order of application, and no token for the image."""

    manifest: bytes
    model_config: bytes
    endpoint: str
    token: bytes
    deltas: tuple[DeltaLink, ...] = ()


class Fetch(Message, frozen=True):
    """From a worker on the same host: fetch `version`, whole and verified, from one of `sources`; or only the
    `part` of it that its engine has."""

    version: int
    root: bytes
    sources: tuple[str, ...]
    part: EnginePart | None = None


class DropVersion(Message, frozen=True):
    """From the manager to the publisher of a version, and from a worker to the agent of its host: instances
    could not load these weights, and no host will request them again. A version that is not here is ignored.
    """

    version: int
    root: bytes


class WhatComes(Message, frozen=True):
    """From a worker on the same host that has requested this version: asks for its model. Answered with a
    `Fetched` as soon as the manifest is here; the image may still be arriving."""

    QUESTION: ClassVar[bool] = True

    version: int
    root: bytes


class Fetched(Message, frozen=True):
    """The verified image in shared memory; of a part, `tensors` are those that are there. `pulled_bytes` is 0
    if the version was here already. `deltas`: the number of deltas applied to a version that was here; 0 if
    the whole image was pulled."""

    version: int
    root: bytes
    path: str
    tensors: tuple[TensorSpec, ...]
    model_config: bytes
    pulled_bytes: int
    seconds: float
    deltas: int = 0
