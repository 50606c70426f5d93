"""Messages between the pool and its worker processes, and their frames in a pipe.

Owns the frame (length u32 little-endian, then a MessagePack body) and the message types. One frame is under
way at a time: a single item, or items that are scored together. If that fails, each of them is tried alone.
"""

import struct
from array import array
from typing import BinaryIO, TypeVar

import msgspec

from gleaner.actors.protocol.reward import CommandRun
from gleaner.actors.reward.case_limits import CaseLimits, CaseTimes

MAX_FRAME_BYTES = 16 * 2**20
PREFIX = struct.Struct("<I")

_T = TypeVar("_T")


class BadFrame(ValueError):
    """The bytes from the pipe are no frame of ours; the process at its other end cannot be trusted."""


class _Shape(msgspec.Struct, frozen=True, tag=True):
    """Base of the messages in the pipe."""


class ScoreItem(_Shape, frozen=True):
    """Score the response `tokens` to problem `index` of a split. limits: of the tests of its program; None:
    its verifier's."""

    split: str
    index: int
    tokens: list[int]
    limits: CaseLimits | None = None


class ProblemItem(_Shape, frozen=True):
    """Give problem `index` of a split."""

    split: str
    index: int


class ReadItem(_Shape, frozen=True):
    """Give the text of the response `tokens` to problem `index` of a split, with the problem; it is scored
    elsewhere."""

    split: str
    index: int
    tokens: list[int]


class TextItem(_Shape, frozen=True):
    """Score the text `response` to the problem `entry`, for a task of the settings. entry: JSON of an
    `Entry`."""

    task: str
    entry: bytes
    response: str


class StageItem(_Shape, frozen=True):
    """One stage of the score of an item. carried: what the stage before left
    (`gleaner.actors.reward.carried`), b"" in the first one."""

    stage: str
    item: ScoreItem | TextItem
    carried: bytes


class ScoreItems(_Shape, frozen=True):
    """Score these, together."""

    items: list[ScoreItem | TextItem]


class RunItem(_Shape, frozen=True):
    """Run a program; see `RunCode`."""

    language: str
    code: str
    stdin: str
    run_s: float
    compile_s: float


class Ready(_Shape, frozen=True):
    """The worker loaded its scorer."""


class ScoreOut(_Shape, frozen=True):
    """The reward, and the verdict's other fields (`verdicts`). tests: of a program that had limits."""

    score: float
    status: str = "ok"
    detail: str = ""
    tests: CaseTimes | None = None


class ScoresOut(_Shape, frozen=True):
    """The rewards of items that were scored together, in their order."""

    scores: list[ScoreOut]


class PassedOut(_Shape, frozen=True):
    """The item has passed its stage. carried: what the next one needs."""

    carried: bytes


class ProblemOut(_Shape, frozen=True):
    """The question as text and as prompt tokens."""

    question: str
    prompt_tokens: list[int]


class ReadOut(_Shape, frozen=True):
    """A response and its problem, as a reward service takes them."""

    item: TextItem


class RunOut(_Shape, frozen=True):
    """What a program and its compiler did; see `CodeRan`."""

    ran: CommandRun | None
    compiled: CommandRun | None = None


class Failed(_Shape, frozen=True):
    """The scorer raised; `detail` is its error."""

    detail: str


Scorable = ScoreItem | TextItem
"""Items whose answer is a score."""
Single = ScoreItem | TextItem | StageItem | ProblemItem | ReadItem | RunItem
"""Items that wait for a worker, each on its own."""
Item = Single | ScoreItems
Answer = Ready | ScoreOut | ScoresOut | PassedOut | ProblemOut | ReadOut | RunOut | Failed

_encode = msgspec.msgpack.Encoder().encode
_items: msgspec.msgpack.Decoder[Item] = msgspec.msgpack.Decoder(Item)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def pack(shape: Item | Answer) -> bytes:
    """A whole frame. Raises `BadFrame` for one that the other end would refuse."""
    body = _encode(shape)
    if len(body) > MAX_FRAME_BYTES:
        raise BadFrame(f"{type(shape).__name__} has {len(body)} bytes, at most {MAX_FRAME_BYTES} are sent")
    return PREFIX.pack(len(body)) + body


def score_item(split: str, index: int, tokens: bytes, limits: CaseLimits | None = None) -> ScoreItem:
    """The item of a response, given as u32 tokens, little-endian."""
    return ScoreItem(split, index, array("I", tokens).tolist(), limits)


def length(prefix: bytes) -> int:
    """Size of the body that follows. Raises `BadFrame`."""
    (size,) = PREFIX.unpack(prefix)
    if size > MAX_FRAME_BYTES:
        raise BadFrame(f"a frame of {size} bytes is announced, at most {MAX_FRAME_BYTES} are taken")
    return int(size)


def answer(body: bytes) -> Answer:
    """The answer in a body. Raises `BadFrame`."""
    return _decode(_answers, body)


def item(body: bytes) -> Item:
    """The item in a body. Raises `BadFrame`."""
    return _decode(_items, body)


def read_item(stream: BinaryIO) -> Item | None:
    """The next item, waiting for it; None at the end of the pipe. Raises `BadFrame`."""
    prefix = stream.read(PREFIX.size)
    if not prefix:
        return None
    body = stream.read(length(prefix)) if len(prefix) == PREFIX.size else b""
    return item(body)


def _decode(decoder: "msgspec.msgpack.Decoder[_T]", body: bytes) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"{len(body)} bytes are no frame: {error}") from error
