"""`ControlPage`: weight state of an instance, readable by any process of the host.

A page holds the served version, the next version, and the version that did not load with its reason. This
module owns the fields of a page, their changes, and the encoding. Pure: `file` keeps the page in
shared memory beside the images, so readers need no request to the instance.

A page is 64 words of eight bytes, little-endian; docs/weights.md ("The control page") lists each word. Its
sequence number is odd while it is written. Its last word is the xxh3-64 of all words before it, so a reader
recognises a complete page whatever the processor's order of stores.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol

import xxhash

SUFFIX = ".control"
PAGE_BYTES = 512
WORDS = PAGE_BYTES // 8
SEQ_WORD = 1
ROOT_BYTES, WHY_BYTES = 32, 320
NONE, NO_ROOT = -1, bytes(ROOT_BYTES)
_MAGIC = b"GLEANCP1"  # the last digit is the version of the layout
_LAYOUT = struct.Struct("<8s4Q q32s q32s q32s 3Q 320s Q")
_HEAD = struct.Struct("<8sQ")
_COUNT = (1 << 64) - 1
assert _LAYOUT.size == PAGE_BYTES


class State(IntEnum):
    """Weight state of an instance. LOADING: it decodes nothing meanwhile. LOAD_FAILED: it serves the previous
    weights."""

    NOTHING = 0
    PREPARING = 1
    LOADING = 2
    SERVING = 3
    LOAD_FAILED = 4


class BadPage(Exception):
    """The bytes are no control page."""


class TornPage(BadPage):
    """A page that is being written, or was when its writer died."""


@dataclass(frozen=True, slots=True)
class Page:
    """Contents of a control page.

    Versions are -1 where there is none; roots are those of manifests, 32 bytes.

    pid, incarnation: of the writer. version: the served version. next_version: the version that is prepared
    or loaded. failed_version: the last version that did not load, `tries` times, because of `why`; none once
    it, or a newer one, is served. loads, failures: successful and failed weight loads, in all lives of the
    instance on this host.
    """

    state: State = State.NOTHING
    pid: int = 0
    incarnation: int = 0
    version: int = NONE
    root: bytes = NO_ROOT
    next_version: int = NONE
    next_root: bytes = NO_ROOT
    failed_version: int = NONE
    failed_root: bytes = NO_ROOT
    tries: int = 0
    loads: int = 0
    failures: int = 0
    why: str = ""

    def begun(self, incarnation: int) -> Page:
        """A new life of the instance, which serves nothing yet."""
        return replace(
            self,
            state=State.NOTHING,
            incarnation=incarnation,
            version=NONE,
            root=NO_ROOT,
            next_version=NONE,
            next_root=NO_ROOT,
        )

    def preparing(self, version: int, root: bytes) -> Page:
        """This version is here, and is prepared beside the served one."""
        return replace(self, state=State.PREPARING, next_version=version, next_root=root)

    def loading(self) -> Page:
        """The prepared version is loaded, in a pause."""
        return replace(self, state=State.LOADING)

    def loaded(self) -> Page:
        """The prepared version is served."""
        state = replace(
            self,
            state=State.SERVING,
            version=self.next_version,
            root=self.next_root,
            next_version=NONE,
            next_root=NO_ROOT,
            loads=self.loads + 1,
        )
        if self.failed_version > state.version:
            return state
        return replace(state, failed_version=NONE, failed_root=NO_ROOT, tries=0, why="")

    def failed(self, why: str) -> Page:
        """The prepared version did not load; the previous version is still served. `why` becomes one line."""
        again = (self.failed_version, self.failed_root) == (self.next_version, self.next_root)
        return replace(
            self,
            state=State.LOAD_FAILED,
            failed_version=self.next_version,
            failed_root=self.next_root,
            next_version=NONE,
            next_root=NO_ROOT,
            tries=self.tries + 1 if again else 1,
            failures=self.failures + 1,
            why=" ".join(why.split())[:WHY_BYTES],
        )


class ControlPage(Protocol):
    """The port through which an instance writes its page. A failure of the page never fails the instance."""

    def left(self) -> Page:
        """The page of the instance's previous life; an empty page where there is none, or it is not whole."""

    def tell(self, page: Page) -> None:
        """Publish this page to readers."""

    async def closed(self) -> None:
        """End of this life: the page is no longer written, and its contents stay. May be called any number of
        times.
        """


def encode(page: Page, seq: int) -> bytes:
    """The bytes of a page. A longer `why` is cut."""
    why = page.why.encode(errors="replace")[:WHY_BYTES].decode(errors="ignore").encode()
    fields = (
        *(_MAGIC, seq, page.state, page.pid, page.incarnation),
        *(page.version, page.root, page.next_version, page.next_root, page.failed_version, page.failed_root),
        *(page.tries & _COUNT, page.loads & _COUNT, page.failures & _COUNT, why),
    )
    data = _LAYOUT.pack(*fields, 0)
    return data[:-8] + xxhash.xxh3_64_intdigest(data[:-8]).to_bytes(8, "little")


def decode(data: bytes) -> Page:
    """Decode a page from the first bytes of a file. Raises `TornPage`, `BadPage`."""
    if len(data) < PAGE_BYTES:
        raise BadPage(f"{len(data)} bytes, a control page has {PAGE_BYTES}: it is cut short")
    data = data[:PAGE_BYTES]
    if not any(data):
        raise TornPage("nothing was written to it yet")
    magic, seq = _HEAD.unpack_from(data)
    if seq % 2 and magic in (_MAGIC, bytes(8)):
        raise TornPage(f"its sequence number, {seq}, is odd: it is being written")
    if magic != _MAGIC:
        raise BadPage(f"it begins with {magic!r}, not with {_MAGIC!r}: no control page, or of another layout")
    _, _, *fields, check = _LAYOUT.unpack(data)
    if check != xxhash.xxh3_64_intdigest(data[:-8]):
        raise TornPage("its words do not belong together: their checksum is another")
    try:
        fields[0], fields[-1] = State(fields[0]), fields[-1].rstrip(b"\0").decode()
    except ValueError as problem:
        raise BadPage(f"a field has an invalid value: {problem}") from problem
    return Page(*fields)


def words_of(data: bytes) -> tuple[int, ...]:
    """The bytes of a page as they are stored, eight at a time."""
    return struct.unpack(f"<{WORDS}Q", data)


def next_seq(seq: int) -> int:
    """The sequence number of the next complete page, for any number that a writer left."""
    return ((seq | 1) + 1) & _COUNT
