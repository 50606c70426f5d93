"""Sources: the publisher's choice of sources under notices, deaths and lost state."""

from gleaner.actors.protocol.weights import FindSource
from gleaner.actors.weights.transfer.waves import MAX_WAVES, Sources
from gleaner.supervisor import Address

PAYLOAD = 1 << 20
ROOT = b"root"


def sources(*, relay: bool = True) -> Sources:
    """The sources of a publisher whose slow link serves one receiver at a time."""
    return Sources("a/transfer", 1e5, chunk_bytes=1 << 16, relay=relay)


def asked(name: str, have_bytes: int = 0, root: bytes = ROOT) -> FindSource:
    receiver = Address(name=f"{name}/transfer", endpoint="loop://x", incarnation=1)
    return FindSource(version=1, root=root, receiver=receiver, have_bytes=have_bytes)


def find(book: Sources, name: str, now_s: float, have_bytes: int = 0) -> str:
    return book.find(asked(name, have_bytes), PAYLOAD, "", now_s)


def test_second_receiver_pulls_from_the_first_with_relays() -> None:
    book, star = sources(), sources(relay=False)
    assert [find(book, name, 0.0) for name in "bc"] == ["a/transfer", "b/transfer"]
    assert [find(star, name, 0.0) for name in "bc"] == ["a/transfer", "a/transfer"]


def test_host_with_notice_gets_no_source_until_spared() -> None:
    book = sources()
    assert find(book, "b", 0.0) == "a/transfer"
    book.leaves("b/transfer")
    assert find(book, "b", 0.1) == "", "a leaving host needs no more chunks"
    assert find(book, "c", 0.1) == "a/transfer", "the slot at the publisher is free"
    book.lose("b/transfer")
    assert find(book, "b", 0.2) == "c/transfer"


def test_child_of_a_dead_peer_gets_another_source() -> None:
    book = sources()
    assert [find(book, name, 0.0) for name in "bc"] == ["a/transfer", "b/transfer"]
    book.lose("b/transfer")
    assert find(book, "c", 0.1, have_bytes=1 << 16) == "a/transfer"


def test_lost_state_is_rebuilt_by_the_next_questions() -> None:
    book = sources()
    assert find(book, "b", 9.0, have_bytes=PAYLOAD // 2) == "a/transfer"
    assert find(book, "c", 9.0) == "b/transfer"


def test_waves_are_bounded_and_end_with_their_version() -> None:
    book = sources()
    for number in range(MAX_WAVES + 5):
        book.find(asked("b", root=bytes([number])), PAYLOAD, "", 0.0)
    assert len(book._waves) == MAX_WAVES
    book.forget(bytes([MAX_WAVES]))
    assert len(book._waves) == MAX_WAVES - 1
