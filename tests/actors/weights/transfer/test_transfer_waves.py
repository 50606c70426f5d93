"""Whom the publisher's agent sends receivers to: notices, deaths, and a book that may be lost at any time."""

from gleaner.actors.protocol.weights import FindSource
from gleaner.actors.weights.transfer.waves import MAX_WAVES, Sources
from gleaner.supervisor import Address

PAYLOAD = 1 << 20
ROOT = b"root"


def sources(*, relay: bool = True) -> Sources:
    """Of a publisher whose link is so slow that it serves one receiver at a time."""
    return Sources("a/transfer", 1e5, chunk_bytes=1 << 16, relay=relay)


def asked(name: str, have_bytes: int = 0, root: bytes = ROOT) -> FindSource:
    receiver = Address(name=f"{name}/transfer", endpoint="loop://x", incarnation=1)
    return FindSource(version=1, root=root, receiver=receiver, have_bytes=have_bytes)


def find(book: Sources, name: str, now_s: float, have_bytes: int = 0) -> str:
    return book.find(asked(name, have_bytes), PAYLOAD, "", now_s)


def test_the_second_receiver_pulls_from_the_first_unless_relays_are_off() -> None:
    book, star = sources(), sources(relay=False)
    assert [find(book, name, 0.0) for name in "bc"] == ["a/transfer", "b/transfer"]
    assert [find(star, name, 0.0) for name in "bc"] == ["a/transfer", "a/transfer"]


def test_a_host_with_notice_is_sent_to_nobody_and_spared_it_is_one_receiver_among_others_again() -> None:
    book = sources()
    assert find(book, "b", 0.0) == "a/transfer"
    book.leaves("b/transfer")
    assert find(book, "b", 0.1) == "", "it leaves: it needs no more of it"
    assert find(book, "c", 0.1) == "a/transfer", "its place at the publisher is free"
    book.lose("b/transfer")
    assert find(book, "b", 0.2) == "c/transfer"


def test_who_pulled_from_one_that_died_is_sent_to_another_one() -> None:
    book = sources()
    assert [find(book, name, 0.0) for name in "bc"] == ["a/transfer", "b/transfer"]
    book.lose("b/transfer")
    assert find(book, "c", 0.1, have_bytes=1 << 16) == "a/transfer"


def test_a_book_that_was_lost_is_written_again_by_the_next_questions() -> None:
    book = sources()
    assert find(book, "b", 9.0, have_bytes=PAYLOAD // 2) == "a/transfer"
    assert find(book, "c", 9.0) == "b/transfer"


def test_waves_are_bounded_and_go_with_their_version() -> None:
    book = sources()
    for number in range(MAX_WAVES + 5):
        book.find(asked("b", root=bytes([number])), PAYLOAD, "", 0.0)
    assert len(book._waves) == MAX_WAVES
    book.forget(bytes([MAX_WAVES]))
    assert len(book._waves) == MAX_WAVES - 1
