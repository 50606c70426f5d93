"""`Carried`: what one stage of an item leaves for the next one. Pure.

It travels with the item, packed. A small program is in it; a larger one is a blob of the host that made it
(`blobs`), named by the digest of its bytes.
"""

import hashlib

import msgspec

from gleaner.actors.reward.case_limits import CaseTimes
from gleaner.actors.reward.verdicts import Judgement

INLINE_BYTES = 64 * 2**10
"""Larger programs stay in the host's blobs: thousands of items wait, each with what it carries."""
MAX_BYTES = 2 * INLINE_BYTES
"""Of a packed one: what a host sends beyond that is refused."""


def digest_of(content: bytes) -> str:
    """blake2b of 16 bytes, as hex."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class BadCarried(ValueError):
    """The bytes are not what a stage leaves."""


class CarriedScore(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement of the verifier itself, for the judge beside it."""

    score: float
    detail: str = ""
    parts: dict[str, float] = {}
    cpu_s: float = 0.0
    tests: CaseTimes | None = None


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """program: of a compiled response; b"" where it is a blob. digest: of its bytes, blake2b of 16 bytes as
    hex; "" without a program. cpu_s: processor seconds of the stages so far. own: see `CarriedScore`."""

    program: bytes = b""
    digest: str = ""
    cpu_s: float = 0.0
    own: CarriedScore | None = None

    @property
    def blob(self) -> str:
        """The digest of the blob that the next stage reads, "" if it needs none."""
        return "" if self.program else self.digest

    @staticmethod
    def of_own(judged: Judgement) -> "Carried":
        """What the judge beside a verifier needs of the verifier's own judgement."""
        own = CarriedScore(
            score=judged.score,
            detail=judged.detail,
            parts=dict(judged.parts),
            cpu_s=judged.cpu_s,
            tests=judged.tests,
        )
        return Carried(own=own)

    def judgement(self) -> Judgement:
        """The verifier's own judgement again. Raises BadCarried where there is none."""
        if self.own is None:
            raise BadCarried("the stage before left no score")
        own = self.own
        return Judgement(own.score, detail=own.detail, parts=own.parts, cpu_s=own.cpu_s, tests=own.tests)


def packed(carried: Carried) -> bytes:
    """Its bytes."""
    return msgspec.msgpack.encode(carried)


def unpacked(content: bytes) -> Carried:
    """What the bytes hold. Raises BadCarried."""
    if len(content) > MAX_BYTES:
        raise BadCarried(f"a stage left {len(content)} bytes, at most {MAX_BYTES} are carried")
    try:
        return msgspec.msgpack.decode(content, type=Carried)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadCarried(f"{len(content)} bytes are not what a stage leaves: {error}") from error
