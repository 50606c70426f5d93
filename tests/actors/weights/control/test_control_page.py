"""Control pages: exact contents, no torn reads, repair after a dead writer."""

import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.weights.control.file import ControlFile, PageInUse, PageWriter, has_writer, read_page
from gleaner.actors.weights.control.page import (
    PAGE_BYTES,
    WHY_BYTES,
    BadPage,
    Page,
    State,
    TornPage,
    decode,
    encode,
    next_seq,
    words_of,
)

ROOT = bytes(range(32))
COUNTS, VERSIONS = st.integers(0, 2**64 - 1), st.integers(-1, 2**63 - 1)
ROOTS = st.binary(min_size=32, max_size=32)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=80)
PAGES = st.builds(
    Page,
    *(st.sampled_from(State), COUNTS, COUNTS, VERSIONS, ROOTS, VERSIONS, ROOTS, VERSIONS, ROOTS),
    *(COUNTS, COUNTS, COUNTS, TEXTS),
)


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder) / "engine.control"


@given(PAGES, st.integers(0, 2**63 - 1).map(lambda half: 2 * half))
def test_written_page_is_decoded_unchanged(page: Page, seq: int) -> None:
    data = encode(page, seq)
    assert len(data) == PAGE_BYTES
    assert decode(data) == page
    assert decode(data + b"whatever lies behind") == page


@given(PAGES, PAGES, st.integers(0, PAGE_BYTES // 8))
def test_mixed_halves_of_two_pages_are_refused(old: Page, new: Page, stored: int) -> None:
    before, after = encode(old, 2), encode(new, 4)
    mixed = after[: 8 * stored] + before[8 * stored :]
    if mixed in (before, after):
        return
    with pytest.raises(TornPage):
        decode(mixed)


@given(st.integers(0, 2**64 - 1))
def test_next_sequence_number_is_new_and_even(seq: int) -> None:
    assert next_seq(seq) % 2 == 0
    assert next_seq(seq) != seq


def test_every_field_is_where_the_document_specifies() -> None:
    page = Page(State.LOAD_FAILED, 11, 12, 13, ROOT, 14, ROOT[::-1], 15, bytes(32), 16, 17, 18, "näh")
    data = encode(page, 20)
    document = (Path(__file__).parents[4] / "docs/weights.md").read_text()
    for offset, field, value in (
        (0, "magic", int.from_bytes(b"GLEANCP1", "little")),
        *((8, "seq", 20), (16, "state", 4), (24, "pid", 11), (32, "incarnation", 12), (40, "version", 13)),
        *((80, "next_version", 14), (120, "failed_version", 15), (160, "tries", 16), (168, "loads", 17)),
        *((176, "failures", 18), (504, "check", xxhash.xxh3_64_intdigest(data[:504]))),
    ):
        assert struct.unpack_from("<Q", data, offset) == (value,)
        assert words_of(data)[offset // 8] == value
        assert f"| {offset} | `{field}` |" in document
    for offset, field, raw in (
        *((48, "root", ROOT), (88, "next_root", ROOT[::-1]), (128, "failed_root", bytes(32))),
        (184, "why", "näh".encode()),
    ):
        assert data[offset : offset + len(raw)] == raw
        assert f"| {offset} | `{field}` |" in document


def test_too_long_reason_is_cut_between_letters() -> None:
    reason = decode(encode(Page(why="ä" * WHY_BYTES), 2)).why
    assert reason == "ä" * (WHY_BYTES // 2)


def test_failed_version_is_counted_until_a_load_succeeds() -> None:
    page = Page().begun(1).preparing(1, ROOT).loading().loaded()
    assert (page.state, page.version, page.next_version) == (State.SERVING, 1, -1)
    page = page.preparing(2, ROOT).loading().failed("no\n  room " * 999)
    assert page.why.startswith("no room no room")
    assert len(page.why) == WHY_BYTES
    page = page.preparing(2, ROOT).loading().failed("no, no")
    assert (page.state, page.version, page.failed_version) == (State.LOAD_FAILED, 1, 2)
    assert (page.tries, page.failures, page.why) == (2, 2, "no, no")
    again = page.begun(2)
    assert (again.state, again.version, again.failed_version) == (State.NOTHING, -1, 2)
    older = again.preparing(1, ROOT).loading().loaded()
    assert (older.failed_version, older.why, older.loads) == (2, "no, no", 2)
    newer = older.preparing(3, ROOT).loading().loaded()
    assert (newer.failed_version, newer.tries, newer.why, newer.failures) == (-1, 0, "", 2)


async def test_page_has_one_writer_and_the_next_continues(path: Path) -> None:
    first = ControlFile(path.parent / "weights", "spot-1/engine")
    page = first.left().begun(1).preparing(7, ROOT).loading().failed("it does not fit")
    first.tell(page)
    assert read_page(first.path).pid == os.getpid()
    assert has_writer(first.path)
    with pytest.raises(PageInUse):
        PageWriter(first.path)
    second = ControlFile(path.parent / "weights", "spot-1/engine")
    second.tell(page.begun(2))  # not possible yet; the caller ignores that
    assert read_page(first.path).incarnation == 1
    await first.closed()
    await first.closed()
    first.tell(Page())
    assert not has_writer(first.path)
    assert read_page(first.path).why == "it does not fit"
    assert second.left().failed_version == 7
    second.tell(page.begun(2))
    assert read_page(first.path).incarnation == 2
    await second.closed()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes, a control page has 512: it is cut short"),
        (encode(Page(), 2)[:511], "511 bytes"),
        (b"\x7fELF" + bytes(600), "no control page, or of another layout"),
        (bytes(512), "nothing was written to it yet"),
        (encode(Page(), 7), "number, 7, is odd.* its writer died in the middle"),
        (encode(Page(), 2)[:-1] + b"!", "checksum"),
    ],
)
def test_invalid_page_is_named_and_repaired_later(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(BadPage, match=rf"{path}: .*{message}"):
        read_page(path)
    writer = PageWriter(path)
    assert writer.left == Page()
    writer.write(Page(version=3))
    assert read_page(path).version == 3
    writer.close()


def test_paused_writer_is_distinguished_from_a_dead_one(path: Path) -> None:
    writer = PageWriter(path)
    writer.write(Page())
    path.write_bytes(encode(Page(), 3))  # the same file: its first half is stored
    with pytest.raises(TornPage, match="writer hangs"):
        read_page(path)
    writer.close()
    with pytest.raises(TornPage, match="died"):
        read_page(path)


LIVES = 128
DRIVER = f"""
import os, random, select, signal, sys
from pathlib import Path
from gleaner.actors.weights.control.file import PageWriter
from gleaner.actors.weights.control.page import Page, State

class Dying:
    def __init__(self, words, stores):
        self.words, self.left = words, stores
    def __getitem__(self, at):
        return self.words[at]
    def __setitem__(self, at, word):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.words[at] = word

path, rng, torn, life = Path(sys.argv[1]), random.Random(1), 0, 0
while life < {LIVES} or (life < 100 * {LIVES} and not select.select([0], [], [], 0)[0]):
    out, into = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            writer, n = PageWriter(path), life * 1000000
            while True:
                n += 1
                root = n.to_bytes(32, "little")
                writer.write(Page(State(n % 5), n, n, n, root, n, root, n, root, n, n, n, str(n) * 20))
                if n % 1000000 == 1:
                    os.write(into, b".")
                    if life % 2:  # before its 1st, 2nd, ... 64th store; the other half dies somewhere
                        writer._words = Dying(writer._words, life // 2 % 64 + 1)
        finally:
            os._exit(1)
    os.close(into)
    os.read(out, 1)
    for _ in range(rng.randrange(3000)):
        pass
    if not life % 2:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(out)
    torn += path.read_bytes()[8] % 2
    life += 1
print(torn, flush=True)
"""


@pytest.mark.realprocess
def test_killed_writers_never_show_half_a_page(path: Path) -> None:
    PageWriter(path).close()
    command = [sys.executable, "-c", DRIVER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        try:
            lives: set[int] = set()
            while driver.poll() is None:
                try:
                    page = read_page(path)
                except TornPage:
                    continue
                n = page.version
                root = n.to_bytes(32, "little")
                assert page == Page(
                    State(n % 5), page.pid, n, n, root, n, root, n, root, n, n, n, str(n) * 20
                )
                lives.add(n // 1000000)
                if len(lives) == 5:
                    driver.stdin.close()
            assert int(driver.stdout.read()) >= LIVES // 2 - 1, "too few writers died in the middle"
            assert len(lives) >= 5
        finally:
            driver.kill()
    last = PageWriter(path)
    last.write(Page(version=7))
    assert read_page(path).version == 7
    last.close()
