"""Keys on disk, and the keys that listening requires."""

import stat

import pytest

from gleaner.transport.keys import (
    BadKeys,
    NodeKeys,
    RefusedToListen,
    is_loopback,
    read_trusted,
    require_keys_beyond_loopback,
)


def test_keys_survive_saving_and_loading(tmp_path) -> None:
    pair, friend = NodeKeys.generate(), NodeKeys.generate()
    keys = NodeKeys(pair.public, pair.secret, frozenset({friend.public}))
    keys.save(tmp_path)
    assert NodeKeys.load(tmp_path) == keys
    assert keys.allowed.admitted == {pair.public, friend.public}
    assert stat.S_IMODE((tmp_path / "node.secret").stat().st_mode) == 0o600


def test_secret_is_not_shown() -> None:
    keys = NodeKeys.generate()
    assert keys.secret not in repr(keys)


def test_identity_is_never_overwritten(tmp_path) -> None:
    NodeKeys.generate().save(tmp_path)
    before = NodeKeys.load(tmp_path)
    with pytest.raises(BadKeys, match=r"node\.secret exists"):
        NodeKeys.generate().save(tmp_path)
    assert NodeKeys.load(tmp_path) == before


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda d: (d / "node.public").unlink(), r"node\.public is missing: .*keygen"),
        (lambda d: (d / "node.secret").chmod(0o644), r"chmod 600"),
        (lambda d: (d / "node.public").write_text("short\n"), r"node\.public holds no key"),
        (lambda d: (d / "node.public").write_bytes(b"\xff" * 40), r"node\.public cannot be read"),
        (lambda d: (d / "node.public").write_text(NodeKeys.generate().public), "does not belong"),
        (lambda d: (d / "trusted" / "x.public").write_text("é" * 40), r"x\.public holds no key"),
    ],
)
def test_damaged_directory_is_named(tmp_path, damage, problem) -> None:
    NodeKeys.generate().save(tmp_path)
    damage(tmp_path)
    with pytest.raises(BadKeys, match=problem):
        NodeKeys.load(tmp_path)


def test_list_has_a_limit(tmp_path, monkeypatch) -> None:
    NodeKeys("a" * 40, "b" * 40, frozenset(f"{number:040}" for number in range(3))).save(tmp_path)
    assert len(read_trusted(tmp_path)) == 3
    monkeypatch.setattr("gleaner.transport.keys.MAX_TRUSTED", 2)
    with pytest.raises(BadKeys, match="holds 3 keys, the limit is 2"):
        read_trusted(tmp_path)


def test_key_is_usable_on_a_command_line() -> None:
    assert not any(NodeKeys.generate().public.startswith("-") for _ in range(300))


@pytest.mark.parametrize(
    "bind", ["tcp://127.0.0.1:0", "tcp://127.8.8.8:7700", "tcp://[::1]:7700", "tcp://localhost:1"]
)
def test_loopback_needs_no_keys(bind) -> None:
    require_keys_beyond_loopback(bind, None)
    assert is_loopback(bind)


@pytest.mark.parametrize("bind", ["tcp://10.0.0.1:7700", "tcp://[fe80::1]:7700", "tcp://head.example:7700"])
def test_listening_beyond_loopback_needs_keys(bind) -> None:
    with pytest.raises(RefusedToListen, match="keygen"):
        require_keys_beyond_loopback(bind, None)
    require_keys_beyond_loopback(bind, NodeKeys.generate())


@pytest.mark.parametrize("bind", ["tcp://*:7700", "tcp://0.0.0.0:0", "tcp://[::]:0"])
def test_wildcard_is_refused_even_with_keys(bind) -> None:
    with pytest.raises(RefusedToListen, match="interface"):
        require_keys_beyond_loopback(bind, NodeKeys.generate())


@pytest.mark.parametrize(
    "bind", ["", "7700", "tcp://host", "ipc://x", "http://127.0.0.1:80", "tcp://1.2.3.4:http"]
)
def test_invalid_address_is_refused(bind) -> None:
    with pytest.raises(RefusedToListen, match="tcp://host:port"):
        require_keys_beyond_loopback(bind, NodeKeys.generate())
