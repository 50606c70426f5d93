"""The allow-list: it follows its directory and governs live connections."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from gleaner.transport.allow_list import MAX_REVOKED, AllowList
from gleaner.transport.gate import Revoked
from gleaner.transport.key_follower import KeyFollower
from gleaner.transport.keys import BadKeys, NodeKeys, fingerprint, read_trusted
from gleaner.transport.mesh import ZmqWire
from gleaner.transport.sockets import Listener, default_context, open_router
from gleaner.transport.wire import Link, Sent

POLL_S = 0.02


class Node:
    """A key directory, its wire, and the frames that this wire received."""

    def __init__(self, root: Path, name: str, recorder: Callable[..., object]) -> None:
        self.root = root / name
        NodeKeys.generate().save(self.root)
        self.keys = NodeKeys.load(self.root)
        self.name = name
        self.wire = ZmqWire(name, 1, keys=self.keys)
        self.recorder = recorder(self.wire)
        self.follower = KeyFollower(self.keys, self.root, poll_s=POLL_S)

    def trust(self, other: "Node") -> None:
        file = self.root / "trusted" / f"{other.name}.public"
        fresh = file.with_suffix(".new")
        fresh.write_text(other.keys.public + "\n")
        fresh.rename(file)

    def revoke(self, other: "Node") -> None:
        (self.root / "trusted" / f"{other.name}.public").unlink()

    async def close(self) -> None:
        self.follower.close()
        await self.wire.close()


@pytest.fixture
async def node(tmp_path, recorder):
    nodes: list[Node] = []

    def make(name: str) -> Node:
        nodes.append(Node(tmp_path, name, recorder))
        return nodes[-1]

    yield make
    for made in nodes:
        await made.close()


async def asked(asker: Node, to: Node, text: bytes, eventually) -> None:
    """Send until a reply comes."""
    before = len(asker.recorder.frames)

    def answered() -> bool:
        if len(asker.recorder.frames) == before and not any(text in frames for frames in to.recorder.frames):
            asker.wire.send(to.wire.local, [text])
        return len(asker.recorder.frames) > before

    await eventually(answered)
    assert asker.recorder.frames[-1] == [b"to " + text]


async def test_revoked_peer_is_cut_and_retrusted_without_restart(node, eventually) -> None:
    head, spot, other = node("head"), node("spot"), node("other")
    head.recorder.reply = lambda frames: [b"to " + frames[0]]
    for one in (spot, other):
        head.trust(one)
        one.trust(head)
        await eventually(lambda one=one: head.keys.allowed.admits(one.keys.public))
        await asked(one, head, b"hello from " + one.name.encode(), eventually)

    head.revoke(spot)
    spot.wire.send(head.wire.local, [b"before it is noticed"])
    await eventually(lambda: Link.REJECTED in spot.recorder.states(head.wire.local))
    received = len(head.recorder.frames)
    for _ in range(5):
        spot.wire.send(head.wire.local, [b"let me in again"])
        await asyncio.sleep(0.02)
    assert [b"let me in again"] not in head.recorder.frames
    assert len(head.recorder.frames) == received
    assert head.wire.refused["unknown-key"] >= 1
    await asked(other, head, b"I am still here", eventually)
    assert other.recorder.states(head.wire.local) == [Link.UP], "the connection of another peer was disturbed"

    head.trust(spot)
    await asked(spot, head, b"here I am again", eventually)


async def test_revoked_dialled_peer_is_closed_and_not_redialled(node, eventually) -> None:
    head, spot = node("head"), node("spot")
    spot.recorder.reply = lambda frames: [b"to " + frames[0]]
    head.trust(spot)
    spot.trust(head)
    await eventually(lambda: spot.keys.allowed.admits(head.keys.public))
    await eventually(lambda: head.keys.allowed.admits(spot.keys.public))
    await asked(head, spot, b"work", eventually)

    head.revoke(spot)
    await eventually(lambda: Link.REJECTED in head.recorder.states(spot.wire.local))
    assert head.wire.refused["revoked"] == 1
    assert head.wire.send(spot.wire.local, [b"more work"]) is Sent.NO_ROUTE
    assert head.wire.refused["cannot-dial"] == 1

    head.trust(spot)
    await eventually(lambda: head.keys.allowed.admits(spot.keys.public))
    await asked(head, spot, b"work again", eventually)


async def test_revoked_connection_without_any_message_is_cut_too(node, eventually) -> None:
    head, spot = node("head"), node("spot")
    head.trust(spot)
    await eventually(lambda: head.keys.allowed.admits(spot.keys.public))
    spot.wire._dial(head.wire.local)  # connects, and sends nothing
    await eventually(lambda: spot.recorder.states(head.wire.local) == [Link.UP])
    head.revoke(spot)
    await eventually(lambda: spot.recorder.states(head.wire.local) == [Link.UP, Link.SUSPECT, Link.REJECTED])


async def test_earlier_frames_of_a_revoked_peer_are_refused(node) -> None:
    own, spot = NodeKeys.generate(), node("spot")
    keys = NodeKeys(own.public, own.secret, frozenset({spot.keys.public}))
    listener = open_router(default_context(), "tcp://127.0.0.1:0", keys, lambda address, what: None)
    try:
        for number in range(2):
            spot.wire.send(listener.local, [str(number).encode()])
        arrived = await queue(listener, 2)
        assert listener.gate.receive(arrived)[-1] == b"0"
        keys.allowed.replace(frozenset({own.public}))
        with pytest.raises(Revoked, match=fingerprint(spot.keys.public)):
            listener.gate.receive(arrived)
    finally:
        listener.sock.close(linger=0)
        listener.gate.close()


class Arrived:
    """A socket whose messages have arrived already: cutting its connection would lose those in flight."""

    def __init__(self) -> None:
        self.parts: list[zmq.Frame] = []

    def recv(self, flags: int = 0, copy: bool = True) -> zmq.Frame:
        return self.parts.pop(0)


async def queue(listener: Listener, count: int) -> Arrived:
    """Read this many messages of a socket that no loop drives."""
    arrived = Arrived()
    async with asyncio.timeout(60.0):
        while count:
            try:
                arrived.parts += listener.sock.recv_multipart(zmq.NOBLOCK, copy=False)
                count -= 1
            except zmq.Again:
                await asyncio.sleep(0.005)
    return arrived


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "new.public").write_text("half a k"),
        lambda folder: (folder / "new.public").write_bytes(b"\xff" * 40),
        lambda folder: (folder / "new.public").mkdir(),
        lambda folder: os.mkfifo(folder / "new.public"),
        lambda folder: (folder / "new.public").symlink_to("nowhere"),
        lambda folder: folder.rename(folder.with_name("elsewhere")),
        lambda folder: folder.with_name("node.public").unlink(),
        lambda folder: (folder / "spot.public").write_text(""),
    ],
    ids=["half-written", "binary", "a folder", "a pipe", "dangling", "no folder", "no own key", "emptied"],
)
async def test_damaged_list_keeps_last_good_one_with_one_report(node, eventually, damage, caplog) -> None:
    caplog.set_level(logging.INFO, "transport")
    head, spot = node("head"), node("spot")
    head.trust(spot)
    await eventually(lambda: head.keys.allowed.admits(spot.keys.public))
    damage(head.root / "trusted")
    await eventually(lambda: head.follower.state().problem)
    await asyncio.sleep(4 * POLL_S)
    assert head.keys.allowed.admits(spot.keys.public)
    warnings = [record for record in caplog.records if "stays in force" in record.getMessage()]
    assert len(warnings) == 1


async def test_repaired_list_comes_into_force(node, eventually, caplog) -> None:
    head, spot = node("head"), node("spot")
    file = head.root / "trusted" / "spot.public"
    file.write_text(spot.keys.public[:20])
    await eventually(lambda: "spot.public holds no key" in head.follower.state().problem)
    file.write_text(spot.keys.public)
    await eventually(lambda: head.keys.allowed.admits(spot.keys.public))
    state = head.follower.state()
    assert (state.problem, state.trusted, state.reloads) == ("", 1, 1)


async def test_file_that_becomes_readable_comes_into_force(node, eventually, monkeypatch) -> None:
    head, spot = node("head"), node("spot")
    unreadable = BadKeys("spot.public cannot be read: Permission denied")

    def refuse(_root: Path) -> dict[str, str]:
        raise unreadable

    monkeypatch.setattr("gleaner.transport.key_follower.read_trusted", refuse)  # root may read everything
    head.trust(spot)
    await eventually(lambda: "Permission denied" in head.follower.state().problem)
    await asyncio.sleep(4 * POLL_S)
    monkeypatch.setattr("gleaner.transport.key_follower.read_trusted", read_trusted)
    (head.root / "trusted" / "spot.public").chmod(0o640)
    await eventually(lambda: head.keys.allowed.admits(spot.keys.public))


async def test_replaced_key_in_the_same_file_is_noticed(node, eventually) -> None:
    head, spot, other = node("head"), node("spot"), node("other")
    head.trust(spot)
    await eventually(lambda: head.keys.allowed.admits(spot.keys.public))
    about = (head.root / "trusted" / "spot.public").stat()
    (head.root / "trusted" / "spot.public").write_text(other.keys.public + "\n")
    os.utime(head.root / "trusted", ns=(about.st_atime_ns, about.st_mtime_ns))
    await eventually(lambda: head.keys.allowed.admits(other.keys.public))
    assert not head.keys.allowed.admits(spot.keys.public)
    assert read_trusted(head.root) == {"spot": other.keys.public}


async def test_unchanged_folder_of_many_keys_is_not_reread(node, eventually, monkeypatch) -> None:
    monkeypatch.setattr("gleaner.transport.key_follower.FILES_A_LOOK", 2)
    head, spot = node("head"), node("spot")
    for number in range(20):
        (head.root / "trusted" / f"n{number}.public").write_text(NodeKeys.generate().public)
    await eventually(lambda: head.follower.state().trusted == 20)
    looks: list[int] = []
    files = head.follower._files
    monkeypatch.setattr(head.follower, "_files", lambda: looks.append(1) or files())
    await asyncio.sleep(22 * POLL_S)
    assert len(looks) <= 4
    head.trust(spot)
    await eventually(lambda: head.keys.allowed.admits(spot.keys.public))
    (head.root / "trusted" / "n3.public").write_text(NodeKeys.generate().public)  # in place
    await eventually(lambda: head.follower.state().reloads == 3)


async def test_changed_own_key_is_reported_and_not_used(node, eventually) -> None:
    head = node("head")
    (head.root / "node.public").write_text(NodeKeys.generate().public)
    await eventually(lambda: "restart the node agent" in head.follower.state().problem)
    assert head.keys.allowed.admits(head.keys.public)


@given(st.lists(st.frozensets(st.sampled_from("abcde")), max_size=12))
def test_listener_changes_add_up_to_list_in_force(lists: list[frozenset[str]]) -> None:
    allowed = AllowList(frozenset("ab"))
    mirror, ever = {"a", "b"}, {"a", "b"}

    def on_change(added: frozenset[str], removed: frozenset[str]) -> None:
        assert added | removed, "an empty change was reported"
        assert removed <= mirror
        assert not added & mirror
        mirror.update(added)
        mirror.difference_update(removed)
        assert {key for key in "abcde" if allowed.admits(key)} == mirror, "reported before it was in force"

    allowed.subscribe(on_change)
    for admitted in lists:
        allowed.replace(admitted)
        ever |= admitted
        assert mirror == admitted == allowed.admitted
        assert {key for key in "abcde" if not allowed.may_dial(key)} == ever - admitted


def test_listeners_get_changes_until_they_leave() -> None:
    received: list[tuple[set[str], set[str]]] = []
    allowed = AllowList(frozenset("ab"))
    leave = allowed.subscribe(lambda added, removed: received.append((set(added), set(removed))))
    allowed.replace(frozenset("ab"))
    allowed.replace(frozenset("bc"))
    leave()
    leave()
    allowed.replace(frozenset())
    assert received == [({"c"}, {"a"})]


def test_revoked_key_is_not_dialled_and_bounded_in_memory() -> None:
    allowed = AllowList(frozenset({"a"}))
    assert allowed.may_dial("never heard of")
    allowed.replace(frozenset())
    assert not allowed.may_dial("a")
    allowed.replace(frozenset({"a"}))
    assert allowed.may_dial("a")
    many = frozenset(f"{number:06}" for number in range(MAX_REVOKED + 3))
    allowed.replace(many)
    allowed.replace(frozenset())
    assert sum(not allowed.may_dial(key) for key in many) == MAX_REVOKED
