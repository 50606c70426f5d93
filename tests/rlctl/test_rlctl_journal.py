"""`rlctl journal`: inspect, verify and export what actors journaled."""

import base64
import json
import sqlite3
from pathlib import Path

import msgpack
import pytest
from postgres_server import PostgresServer

from gleaner.rlctl.__main__ import main
from gleaner.rlctl.audit import journal_faults
from gleaner.rlctl.errors import FAILED, NOTHING, OK, USAGE
from gleaner.supervisor import Message, SqliteJournal
from gleaner.supervisor.journal.group_commit import NewRow, Write
from gleaner.supervisor.journal.port import JournalStore
from gleaner.supervisor.journal.rows import Row, StreamRows, row_checksum
from gleaner.supervisor.journal.sqlite import SqliteKeeper
from gleaner.supervisor.names.registry import NameFenced


class Tossed(Message, frozen=True):
    side: str
    raw: bytes = b"\x00\xff"


class Tosses(Message, frozen=True):
    heads: int


async def fill(store: JournalStore) -> None:
    await store.open("coin", 7)
    await store.append("coin", 7, [Tossed(side="heads"), Tossed(side="tails")])
    await store.snapshot("coin", 7, Tosses(heads=1))
    await store.append("coin", 7, [Tossed(side="edge")])
    await store.append("registry", 9, [NameFenced(name="coin", incarnation=7)])


@pytest.fixture
async def live(tmp_path: Path) -> Path:
    """A journal that its process has open."""
    store = SqliteJournal(tmp_path / "head" / "j.sqlite", commit_s=0.0)
    await fill(store)
    return store.path


def output(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


async def test_inspect_shows_the_streams_of_a_live_journal(
    live: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = live.read_bytes()
    assert main(["journal", "inspect", str(live), "--tail", "2", "--json"]) == OK
    (journal,) = json.loads(capsys.readouterr().out)["journals"]
    assert (journal["place"], journal["layout"]) == (str(live), 2)
    coin, registry = journal["streams"]
    assert coin == {
        "stream": "coin",
        "incarnation": 7,
        "last_seq": 3,
        "snapshot_seq": 2,
        "snapshot": "Tosses",
        "tail": 1,
        "tail_is_long": False,
        "bytes": coin["bytes"],
        "kinds": [
            {"kind": "Tossed", "version": 1, "count": 1, "known": True},
            {"kind": "Tosses", "version": 1, "count": 1, "known": True},
        ],
        "newest": [
            {
                "stream": "coin",
                "incarnation": 7,
                "seq": 3,
                "what": "event",
                "kind": "Tossed",
                "version": 1,
                "whole": True,
                "fields": {"side": "edge", "raw": {"base64": base64.b64encode(b"\x00\xff").decode()}},
            }
        ],
    }
    assert coin["bytes"] > 20
    assert registry["newest"][0]["fields"] == {"name": "coin", "incarnation": 7}
    assert live.read_bytes() == before, "an inspection changes nothing"

    assert main(["journal", "inspect", str(live.parent.parent), "--stream", "coin", "--tail", "1"]) == OK
    shown = capsys.readouterr().out
    assert "Tosses at 2" in shown
    assert 'coin #3 Tossed v1 {"side":"edge"' in shown
    assert "registry" not in shown


async def test_long_tail_and_newer_version_are_marked(
    live: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gleaner.rlctl.journals.MAX_TAIL", 0)
    keeper = SqliteKeeper(live, durable=False, reserve_bytes=0)
    body = msgpack.packb({"type": "Tossed", "angle": 3})
    keeper.commit([Write("coin", 7, [NewRow("Tossed", 2, body)], False)])
    keeper.close()
    assert main(["journal", "inspect", str(live)]) == OK
    shown = capsys.readouterr().out
    assert "2 LONG" in shown
    assert "Tossed v2 x1 (newer)" in shown
    assert main(["journal", "verify", str(live)]) == FAILED
    assert "Tossed version 2 was written by a newer program" in capsys.readouterr().out


async def test_export_is_readable_without_our_classes(
    live: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keeper = SqliteKeeper(live, durable=False, reserve_bytes=0)
    body = msgpack.packb({"type": "Foreign", "map": {1: float("nan")}, "deep": [[b"x"], None]})
    keeper.commit([Write("other", 1, [NewRow("Foreign", 5, body)], False)])
    keeper.close()
    assert main(["journal", "export", str(live)]) == OK
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["stream"], line["seq"], line["what"], line["kind"]) for line in lines] == [
        ("coin", 2, "snapshot", "Tosses"),
        ("coin", 3, "event", "Tossed"),
        ("other", 1, "event", "Foreign"),
        ("registry", 1, "event", "NameFenced"),
    ]
    assert lines[2]["fields"] == {"map": {"1": "nan"}, "deep": [[{"base64": "eA=="}], None]}
    out = tmp_path / "coin.jsonl"
    assert main(["journal", "export", str(live), "--stream", "coin", "--out", str(out)]) == OK
    assert capsys.readouterr().out == ""
    assert [json.loads(line)["fields"].get("heads") for line in out.read_text().splitlines()] == [1, None]
    assert main(["journal", "verify", str(live)]) == OK, "another program's kinds are no damage"


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("UPDATE events SET body=x'80' WHERE stream='coin'", "event 3 of coin fails its checksum"),
        ("DELETE FROM events WHERE stream='coin'", "events 3 to 3 of coin are missing"),
        ("UPDATE streams SET last_seq=9 WHERE name='coin'", "row of stream coin fails its checksum"),
    ],
)
async def test_verify_names_damage_and_export_saves_the_rest(
    live: Path, damage: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["journal", "verify", str(live), "--json"]) == OK
    assert output(capsys)["ok"] is True
    with sqlite3.connect(live) as db:
        db.execute(damage)
    assert main(["journal", "verify", str(live)]) == FAILED
    shown = capsys.readouterr().out
    assert f"DAMAGED  {live}" in shown
    assert what in shown
    assert main(["journal", "verify", str(live), "--json"]) == FAILED
    assert output(capsys)["ok"] is False
    code = main(["journal", "export", str(live)])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "registry" in {line["stream"] for line in lines}
    assert code == (OK if all(line["whole"] for line in lines) else FAILED)


def test_non_journal_file_gives_a_one_line_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = tmp_path / "noise.sqlite"
    noise.write_bytes(b"no journal at all" * 300)
    for action in ("inspect", "verify", "export"):
        assert main(["journal", action, str(noise)]) == FAILED
        assert "noise.sqlite is damaged" in "".join(capsys.readouterr())
    assert main(["journal", "inspect", str(tmp_path / "nowhere")]) == NOTHING
    assert "no folder with journals" in capsys.readouterr().err
    assert main(["journal", "inspect", str(noise), "--tail", "-1"]) == USAGE
    assert main(["journal", "inspect", "postgresql://nobody@127.0.0.1:1/none"]) == FAILED
    assert "start the server" in capsys.readouterr().err


async def test_database_is_inspected_like_a_file(
    postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    from gleaner.supervisor.journal.postgres import PostgresJournal

    url = postgres.new_database()
    store = PostgresJournal(url, space="job-1/rollout", commit_s=0.0)
    await fill(store)
    assert main(["journal", "inspect", url, "--tail", "1"]) == OK
    shown = capsys.readouterr().out
    assert "job-1/rollout: coin" in shown
    assert '"side":"edge"' in shown
    assert main(["journal", "verify", url]) == OK
    assert main(["journal", "export", url, "--stream", "coin"]) == OK
    capsys.readouterr()
    with postgres.session(url.rpartition("/")[2]) as db:
        db.execute("UPDATE gleaner.events SET crc=1 WHERE stream='coin'")
    assert main(["journal", "verify", url]) == FAILED
    assert "event 3 of" in capsys.readouterr().out
    await store.close()


def test_unknown_kind_of_snapshot_is_no_fault(tmp_path: Path) -> None:
    """The same holds for events of unknown kinds: an audit imports only the messages that it reads, not those
    of every actor."""
    kind, body = "OfAnotherProgram", b"\x90"
    snapshot = Row(3, kind, 1, body, row_checksum("cluster/other", 3, kind, 1, body))

    class Journal:
        place = str(tmp_path)

        def check(self) -> None:
            """Its pages are whole."""

        def names(self) -> list[str]:
            return ["cluster/other"]

        def rows(self, name: str) -> StreamRows:
            return StreamRows(name, 1, 3, 3, snapshot, ())

    assert list(journal_faults.faults(Journal(), "")) == []  # type: ignore[arg-type]
