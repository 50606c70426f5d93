"""The sockets of a gang, and how work and rows are shared out; without torch."""

from __future__ import annotations

import socket
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.training import gang
from gleaner.actors.training.gang import Gang, GangBroken, RankFailed, RankMembership, RankSilent
from gleaner.actors.training.gang_orders import (
    PREFIX,
    Add,
    BadFrame,
    Begin,
    Failed,
    Load,
    Report,
    Row,
    length,
    pack,
    unpack,
)
from gleaner.actors.training.sample import Sample
from gleaner.actors.training.shares import rows_of, shares

DEADLINE_S = 60.0  # only a hang takes this long
SILENT_S = 600.0


def sample(tokens: int) -> Sample:
    return Sample([1], range(tokens), [-0.5] * tokens, 0.25)


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 9))
def test_every_sample_is_dealt_once_whole_and_in_order(lengths: list[int], ranks: int) -> None:
    samples = [sample(tokens) for tokens in lengths]
    dealt = shares(samples, ranks)
    assert len(dealt) == ranks
    places = [[id(one) for one in share] for share in dealt]
    order = {id(one): number for number, one in enumerate(samples)}
    assert sorted(place for share in places for place in share) == sorted(order)
    assert all(share == sorted(share, key=order.__getitem__) for share in places)
    loads = [sum(map(len, share)) for share in dealt]
    assert max(loads) - min(loads) <= max(map(len, samples), default=0)
    assert shares(samples, ranks) == dealt


@given(st.integers(0, 300), st.integers(1, 64))
def test_rows_of_all_ranks_join_to_the_rows(rows: int, ranks: int) -> None:
    runs = [rows_of(rows, rank, ranks) for rank in range(ranks)]
    assert [row for run in runs for row in run] == list(range(rows))


def test_sample_is_unchanged_by_a_socket() -> None:
    one = Sample(array("I", [7, 2**32 - 1]), array("I", [1, 2]), array("f", [-0.1, -7.5]), 1 / 3)
    order = unpack(pack(Add((Row.of(one),), 2))[PREFIX.size :])
    assert isinstance(order, Add)
    assert order.rows[0].sample() == one


@pytest.mark.parametrize("body", [b"", b"\xc1", pack(Begin())[PREFIX.size + 1 :], b"\x81\xa4type\xa4Nope"])
def test_non_orders_are_refused(body: bytes) -> None:
    with pytest.raises(BadFrame, match="no frame"):
        unpack(body)
    with pytest.raises(BadFrame, match="announced"):
        length(b"\xff\xff\xff\xff")


def in_a_gang(
    directory: Path, rank_1: Callable[[RankMembership], None], deadline_s: float = DEADLINE_S
) -> Gang:
    """Rank 0's side; rank 1 runs `work` on a thread, then leaves."""

    def run() -> None:
        link = RankMembership(directory, 1, deadline_s)
        while link.join(0.2) is None:
            pass
        rank_1(link)
        link.leave()

    threading.Thread(target=run, daemon=True).start()
    whole = Gang(directory, 2, deadline_s)
    whole.meet(DEADLINE_S)
    return whole


def test_orders_are_carried_out_in_sequence_and_answered(tmp_path: Path) -> None:
    # The name of a Unix socket has 107 bytes at most; folders of runs may be longer.
    directory = tmp_path / ("long" * 40)

    def work(link: RankMembership) -> None:
        for number in range(2):
            order = link.next(DEADLINE_S)
            link.answer(Report({"path": len(order.path) if isinstance(order, Load) else -1, "n": number}))

    whole = in_a_gang(directory, work)
    assert directory.stat().st_mode & 0o077 == 0, "others may not enter"
    for number, path in enumerate(("", "abc")):
        whole.tell([Load(path)])
        assert [report.sums for report in whole.gather()] == [{"path": len(path), "n": number}]
    with pytest.raises(GangBroken, match="rank 1 is gone"):
        whole.tell([Begin()])
        whole.gather()


def test_new_life_of_a_gang_uses_another_file(tmp_path: Path) -> None:
    stores = []
    for _ in range(2):
        whole = in_a_gang(tmp_path, lambda link: None)
        stores.append(whole.store)
        whole.store.touch()
        whole.close()
    assert stores[0] != stores[1]
    assert not stores[0].exists()


def test_missing_rank_is_named(tmp_path: Path) -> None:
    with pytest.raises(GangBroken, match=r"ranks \[1, 2\] did not come within 0.1 s"):
        Gang(tmp_path, 3, DEADLINE_S).meet(0.1)


def test_silent_rank_is_named_at_the_deadline(tmp_path: Path) -> None:
    whole = in_a_gang(tmp_path, lambda link: time.sleep(SILENT_S), deadline_s=0.2)
    whole.tell([Begin()])
    with pytest.raises(RankSilent, match="rank 1 did not answer in time"):
        whole.gather()


def test_rank_with_endless_computation_is_named_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process lives and its sockets are open, so neither an end nor a missing heartbeat reveals it."""
    monkeypatch.setattr(gang, "WORDS_S", 0.3)
    taken, hangs = threading.Event(), threading.Event()

    def work(link: RankMembership) -> None:
        assert link.next(DEADLINE_S) == Begin()
        taken.set()
        hangs.wait(SILENT_S)

    whole = in_a_gang(tmp_path, work, deadline_s=0.2)
    whole.tell([Begin()])
    assert taken.wait(DEADLINE_S)
    with pytest.raises(RankSilent, match="rank 1 did not answer in time"):
        whole.gather()
    broken = whole.blame(RuntimeError("an exchange timed out"))  # the error of rank 0 meanwhile
    assert str(broken).startswith("rank 1 did not answer: it is frozen or overloaded (an exchange timed out")
    hangs.set()


def test_blame_names_the_failed_rank_or_the_silent_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang, "WORDS_S", 0.3)
    failed = in_a_gang(tmp_path / "failed", lambda link: link.answer(Failed("BadState: of another model")))
    blamed = failed.blame(RuntimeError("an exchange ended"))
    assert isinstance(blamed, RankFailed)
    assert str(blamed) == "rank 1 failed: BadState: of another model"
    silent = in_a_gang(tmp_path / "silent", lambda link: time.sleep(SILENT_S))
    assert "rank 1 did not answer" in str(silent.blame(RuntimeError("timed out")))


def test_rank_ends_when_the_socket_of_rank_0_closes(tmp_path: Path) -> None:
    seen: list[str] = []

    def work(link: RankMembership) -> None:
        try:
            link.next(DEADLINE_S)
        except GangBroken as broken:
            seen.append(str(broken))

    in_a_gang(tmp_path, work).close()
    until_s = time.monotonic() + DEADLINE_S
    while not seen and time.monotonic() < until_s:
        time.sleep(0.01)
    assert seen == ["rank 0 is gone"]


def test_stranger_at_the_socket_ends_the_gang(tmp_path: Path) -> None:
    def stranger() -> None:
        until_s = time.monotonic() + DEADLINE_S
        with socket.socket(socket.AF_UNIX) as one:
            while one.connect_ex(str(tmp_path / gang.SOCKET)) and time.monotonic() < until_s:
                time.sleep(0.01)  # its path is there before it listens
            one.sendall(pack(Begin()))
            one.recv(1)

    threading.Thread(target=stranger, daemon=True).start()
    with pytest.raises(GangBroken, match="is no rank of a gang of 2"):
        Gang(tmp_path, 2, DEADLINE_S).meet(DEADLINE_S)
