"""The doctor's findings about keys and about unencrypted connections."""

import json
import os
from pathlib import Path

import msgspec
import pytest

from gleaner.nodeagent.files import AgentFile, publish_agent
from gleaner.nodeagent.state_lock import StateLock
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.doctor import Row
from gleaner.rlctl.doctor_keys import Figures, examine_keys
from gleaner.transport.keys import NodeKeys, fingerprint
from gleaner.transport.trusted import trust

FIGURES: Figures = {"keys_trusted": 2, "keys_changes": 1, "keys_changed_ago_s": 65.2, "keys_problem": ""}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A key directory that trusts one key."""
    NodeKeys.generate().save(tmp_path / "keys")
    trust(tmp_path / "keys", "spot-7", NodeKeys.generate().public)
    return tmp_path / "keys"


def agent(keys: Path | None, endpoint: str, bulk: str = "loopback") -> AgentFile:
    return AgentFile(
        node="spot-1",
        role="preemptible",
        endpoint=endpoint,
        public_key="",
        pid=1,
        keys=str(keys or ""),
        bulk=bulk,
    )


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Announce a running agent; returns what the doctor reports about it."""

    def look(found: AgentFile, figures: Figures | None = FIGURES) -> dict[str, Row]:
        monkeypatch.setattr("gleaner.rlctl.doctor_keys.find_agent", lambda _state_dir: found)
        return {row.what: row for row in examine_keys(None, [tmp_path], lambda _agent: figures)}

    return look


def test_key_directory_is_shown_with_its_trusted_keys(keys: Path) -> None:
    [row] = examine_keys(keys, [])
    assert row.verdict == "ok"
    own = fingerprint(NodeKeys.load(keys).public)
    assert row.found == f"{own}, node.secret 0600, 1 trusted: spot-7"


@pytest.mark.parametrize(
    ("damage", "verdict", "todo"),
    [
        (lambda root: (root / "node.secret").chmod(0o640), "missing", "chmod 600"),
        (lambda root: (root / "trusted" / "x.public").write_text("half"), "missing", "x.public holds no key"),
        (lambda root: (root / "node.public").unlink(), "missing", "rlctl keygen"),
        (lambda root: (root / "trusted").chmod(0o777), "warn", "chmod go-w"),
        (lambda root: (root / "trusted" / "spot-7.public").chmod(0o666), "warn", "chmod go-w"),
        (lambda root: (root / "trusted").rename(root / "gone"), "warn", "make it"),
    ],
    ids=["secret", "damaged", "no key", "open folder", "open file", "no folder"],
)
def test_problem_of_a_key_directory_is_reported(keys: Path, damage, verdict: str, todo: str) -> None:
    damage(keys)
    [row] = examine_keys(keys, [])
    assert row.verdict == verdict
    assert todo in row.todo


def test_host_without_keys_is_reported() -> None:
    [row] = examine_keys(None, [])
    assert (row.what, row.verdict) == ("keys", "ok")


def test_running_agent_reports_what_is_in_force(keys: Path, running) -> None:
    rows = running(agent(keys, "tcp://127.0.0.1:7700"))
    assert list(rows) == [f"keys {keys}", "allow-list of spot-1", "sockets of spot-1"]
    assert rows["allow-list of spot-1"].found == "2 trusted; changed 1x, last 1 min 05 s ago"
    assert rows["sockets of spot-1"].verdict == "ok"
    rows = running(agent(keys, "tcp://127.0.0.1:7700"), FIGURES | {"keys_problem": "x.public holds no key"})
    assert rows["allow-list of spot-1"].verdict == "warn"
    assert rows["allow-list of spot-1"].todo == "x.public holds no key"
    assert running(agent(keys, "tcp://127.0.0.1:7700"), None)["allow-list of spot-1"].verdict == "warn"


def test_plain_sockets_are_named_with_the_allowing_option(keys: Path, running) -> None:
    row = running(agent(keys, "tcp://10.0.0.7:4000", "clear"))["sockets of spot-1"]
    assert row.verdict == "warn"
    assert "weights plain TCP (signed, hashed), allowed by --bulk clear" in row.found
    row = running(agent(keys, "tcp://10.0.0.1:7700"))["sockets of spot-1"]
    assert (row.verdict, "no weights are served" in row.found) == ("ok", True)
    row = running(agent(None, "tcp://127.0.0.1:7700"))["sockets of spot-1"]
    assert "control and tokens plain, weights plain: inside this host" in row.found


def test_command_inspects_the_given_directories(
    keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gleaner.rlctl.commands.doctor.examine", lambda _runs_dir: [])
    (keys / "node.secret").chmod(0o644)
    assert main(["doctor", "--json", "--keys", str(keys), "--state-dir", str(tmp_path)]) == 1
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert row["verdict"] == "missing"


def test_silent_agent_is_reported(keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gleaner.rlctl.doctor_keys.ANSWER_S", 0.3)
    lock = StateLock(tmp_path)
    silent = agent(keys, "tcp://127.0.0.1:1")
    publish_agent(
        tmp_path, msgspec.structs.replace(silent, pid=os.getpid(), public_key=NodeKeys.load(keys).public)
    )
    try:
        rows = {row.what: row for row in examine_keys(None, [tmp_path])}
    finally:
        lock.release()
    assert rows["allow-list of spot-1"].found == "the node agent does not answer"
