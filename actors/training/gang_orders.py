"""Orders of rank 0 in a trainer gang, and the replies of the other ranks.

Owns the messages and their frames: the length (u32, little-endian), then a MessagePack body. `gang` sends
them; `fsdp2_files` defines what an order does. Pure.
"""

from __future__ import annotations

import struct
from array import array

import msgspec

from gleaner.actors.training.sample import Sample

MAX_FRAME_BYTES = 1 << 30  # a micro-batch of a million tokens has some 10 MB
PREFIX = struct.Struct("<I")


class BadFrame(ValueError):
    """The bytes that were received, or the message to be sent, are no frame."""


class _Shape(msgspec.Struct, frozen=True, tag=True):
    """Base of the messages on a socket."""


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One `Sample`: tokens as uint32, log-probs as float32, in the machine's byte order."""

    prompt: bytes
    response: bytes
    logprobs: bytes
    advantage: float

    @classmethod
    def of(cls, sample: Sample) -> Row:
        """Make the row that is sent to another rank."""
        return cls(
            array("I", sample.prompt).tobytes(),
            array("I", sample.response).tobytes(),
            array("f", sample.logprobs).tobytes(),
            sample.advantage,
        )

    def sample(self) -> Sample:
        """As it was."""
        return Sample(
            prompt=array("I", self.prompt),
            response=array("I", self.response),
            logprobs=array("f", self.logprobs),
            advantage=self.advantage,
        )


Sums = dict[str, int | float]
"""`policy_update.StepSums` by its fields."""


class Hello(_Shape, frozen=True):
    """From a rank to rank 0, when it connects."""

    rank: int


class Welcome(_Shape, frozen=True):
    """The reply: the number of ranks in the gang, and the file through which they find each other."""

    ranks: int
    store: str


class Load(_Shape, frozen=True):
    """Load the initial checkpoint, and the state at `path` if there is one ("" for none)."""

    path: str


class Begin(_Shape, frozen=True):
    """Forget what an unfinished step has accumulated."""


class Add(_Shape, frozen=True):
    """Accumulate the gradient of these samples in exactly `passes` passes through the model."""

    rows: tuple[Row, ...]
    passes: int


class Finish(_Shape, frozen=True):
    """Update the weights; the samples of all ranks have added up to `sums`."""

    sums: Sums


class WriteState(_Shape, frozen=True):
    """Write your rows into the files of the state in this folder."""

    directory: str


class WriteImage(_Shape, frozen=True):
    """Write your rows into this image of the weights."""

    path: str


class Report(_Shape, frozen=True):
    """An order was carried out. sums: those of this rank's samples of the step so far."""

    sums: Sums


class Failed(_Shape, frozen=True):
    """An order failed, and this rank ends."""

    why: str


Order = Load | Begin | Add | Finish | WriteState | WriteImage
Frame = Order | Hello | Welcome | Report | Failed

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def pack(frame: Frame) -> bytes:
    """A whole frame. Raises BadFrame for one that the other end would refuse."""
    body = _encode(frame)
    if len(body) > MAX_FRAME_BYTES:
        raise BadFrame(f"{type(frame).__name__} has {len(body)} bytes, at most {MAX_FRAME_BYTES} are sent")
    return PREFIX.pack(len(body)) + body


def length(prefix: bytes) -> int:
    """Size of the body that follows. Raises BadFrame."""
    (size,) = PREFIX.unpack(prefix)
    if size > MAX_FRAME_BYTES:
        raise BadFrame(f"a frame of {size} bytes is announced, at most {MAX_FRAME_BYTES} are taken")
    return int(size)


def unpack(body: bytes) -> Frame:
    """The frame in a body. Raises BadFrame."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise BadFrame(f"{len(body)} bytes are no frame: {problem}") from problem
