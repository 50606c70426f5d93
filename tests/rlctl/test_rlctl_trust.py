"""`rlctl keygen`, `trust` and `revoke`: the list of a key directory."""

import json
import stat
from pathlib import Path

import pytest

from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import FAILED, NOTHING, OK, USAGE
from gleaner.transport import trusted
from gleaner.transport.keys import NodeKeys, fingerprint, read_trusted
from gleaner.transport.trusted import NameTaken


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A node's key directory."""
    NodeKeys.generate().save(tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture
def other() -> str:
    """The public key of another node."""
    return NodeKeys.generate().public


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Three nodes that trust each other."""
    nodes = [word for name in ("head", "spot-1", "laptop") for word in ("--node", name)]
    assert main(["keygen", str(tmp_path / "keys"), *nodes]) == OK
    return tmp_path / "keys"


def test_key_is_trusted_listed_and_revoked(own: Path, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trust", other, "--name", "spot-7", "--keys", str(own)]) == OK
    assert f"spot-7 ({fingerprint(other)}) is trusted now" in capsys.readouterr().out
    assert NodeKeys.load(own).trusted == {other}
    assert main(["trust", "--list", "--keys", str(own)]) == OK
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("spot-7", fingerprint(other), other))
    assert main(["revoke", "spot-7", "--keys", str(own)]) == OK
    assert f"spot-7 ({fingerprint(other)}) is trusted no longer" in capsys.readouterr().out
    assert NodeKeys.load(own).trusted == frozenset()


def test_file_gives_key_and_name(own: Path, other: str, tmp_path: Path) -> None:
    file = tmp_path / "spot-8.public"
    file.write_text(other + "\n")
    assert main(["trust", str(file), "--keys", str(own)]) == OK
    assert read_trusted(own) == {"spot-8": other}
    assert main(["revoke", str(file), "--keys", str(own)]) == OK
    assert read_trusted(own) == {}


def test_key_alone_is_known_by_its_fingerprint(own: Path, other: str) -> None:
    assert main(["trust", other, "--keys", str(own)]) == OK
    assert read_trusted(own) == {fingerprint(other): other}
    assert main(["revoke", fingerprint(other), "--keys", str(own)]) == OK
    assert read_trusted(own) == {}


def test_folder_of_nodes_is_changed_as_a_whole(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    everyone = {path.parent.name: NodeKeys.load(path.parent) for path in cluster.glob("*/node.public")}
    assert {name: set(read_trusted(cluster / name)) for name in everyone} == {
        name: everyone.keys() - {name} for name in everyone
    }
    assert main(["revoke", "spot-1", "--keys", str(cluster)]) == OK
    assert "move it away" in capsys.readouterr().out
    spot = everyone["spot-1"].public
    assert all(spot not in NodeKeys.load(cluster / name).trusted for name in ("head", "laptop"))
    assert main(["trust", "spot-1", "--keys", str(cluster), "--json"]) == OK
    shown = json.loads(capsys.readouterr().out)
    results = {Path(one["keys"]).name: one["result"] for one in shown["directories"]}
    assert results == {"head": "is trusted now", "laptop": "is trusted now", "spot-1": "is this node itself"}
    assert all(spot in NodeKeys.load(cluster / name).trusted for name in ("head", "laptop"))


def test_node_gets_a_new_key_beside_the_old(cluster: Path, tmp_path: Path) -> None:
    old = NodeKeys.load(cluster / "spot-1").public
    (cluster / "spot-1").rename(tmp_path / "old")
    assert main(["keygen", str(cluster), "--node", "spot-1"]) == OK
    new = NodeKeys.load(cluster / "spot-1").public
    assert NodeKeys.load(cluster / "head").trusted >= {old, new}
    assert main(["revoke", "spot-1", "--keys", str(cluster)]) == OK
    left = NodeKeys.load(cluster / "head").trusted
    assert new in left
    assert old not in left


def test_key_is_revoked_under_all_its_names(
    own: Path, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        trusted.trust(own, name, other)
    trusted.trust(own, "c", NodeKeys.generate().public)
    assert main(["revoke", "a", "--keys", str(own), "--json"]) == OK
    [shown] = json.loads(capsys.readouterr().out)["directories"]
    assert [one["name"] for one in shown["removed"]] == ["a", "b"]
    assert set(read_trusted(own)) == {"c"}


def test_trusted_key_stays_and_its_name_is_reserved(
    own: Path, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["trust", other, "--name", "a", "--keys", str(own)]) == OK
    assert main(["trust", other, "--name", "b", "--keys", str(own)]) == OK
    assert "is trusted already, as a" in capsys.readouterr().out
    assert main(["trust", NodeKeys.generate().public, "--name", "a", "--keys", str(own)]) == FAILED
    assert "holds another key" in capsys.readouterr().err
    assert read_trusted(own) == {"a": other}


def test_damaged_file_is_shown_replaced_and_removed(
    own: Path, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("bad", "worse"):
        (own / "trusted" / f"{name}.public").write_text("half a k")
    assert main(["trust", "--list", "--json", "--keys", str(own)]) == FAILED
    [shown] = json.loads(capsys.readouterr().out)["directories"]
    assert "holds no key" in shown["trusted"][0]["problem"]
    assert main(["trust", other, "--name", "bad", "--keys", str(own)]) == OK
    assert main(["revoke", "worse", "--keys", str(own)]) == OK
    assert read_trusted(own) == {"bad": other}


def test_reader_sees_the_whole_file_or_none(own: Path, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_fd: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(OSError, match="full"):
        trusted.trust(own, "spot", other)
    assert NodeKeys.load(own).trusted == frozenset()
    monkeypatch.undo()
    assert trusted.trust(own, "spot", other)
    file = own / "trusted" / "spot.public"
    assert stat.S_IMODE(file.stat().st_mode) & 0o111 == 0
    assert [path.name for path in file.parent.iterdir()] == ["spot.public"]
    with pytest.raises(NameTaken):
        trusted.trust(own, "spot", NodeKeys.generate().public)


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["trust", "nobody"], NOTHING, "no key, and no file or directory with one"),
        (["trust", "short.public"], USAGE, "holds no key"),
        (["trust", "KEY", "--name", "../evil"], USAGE, "1 to 64 letters"),
        (["trust", "KEY", "--name", ".."], USAGE, "1 to 64 letters"),
        (["trust", "KEY", "--list"], USAGE, "leave KEY out"),
        (["revoke", "nobody"], NOTHING, "rlctl trust --list"),
        (["revoke", "short.public"], USAGE, "holds no key"),
        (["revoke", "KEY"], NOTHING, "has that name"),
        (["trust", "KEY", "--keys", "nowhere"], NOTHING, "rlctl keygen"),
        (["revoke", "KEY", "--keys", "nowhere"], NOTHING, "rlctl keygen"),
    ],
)
def test_bad_input_is_reported(
    words: list[str], code: int, problem: str, own: Path, other: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("short.public").write_text("short")
    words = [other if word == "KEY" else word for word in words]
    assert main([*words, *([] if "--keys" in words else ["--keys", str(own)])]) == code
    assert problem in capsys.readouterr().err
    assert read_trusted(own) == {}
