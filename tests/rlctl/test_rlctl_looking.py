"""Commands that inspect a running cluster; unresponsive components are shown."""

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from looked_at import LookedAt, Ping

from gleaner.nodeagent.cluster_view import Processes
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import FAILED, NOTHING, OK, USAGE
from gleaner.rlctl.process_table import rows
from gleaner.supervisor.system_messages import ActorState, SystemState

SILENT = "no answer from spot-2/agent"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LookedAt]:
    with LookedAt(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def look(cluster: LookedAt, capsys: pytest.CaptureFixture[str]) -> "Look":
    return Look(cluster, capsys)


class Look:
    def __init__(self, cluster: LookedAt, capsys: pytest.CaptureFixture[str]) -> None:
        self._head = ["--head", cluster.endpoint]
        self._capsys = capsys

    def text(self, *command: str, code: int = OK) -> str:
        patience = [] if command[0] == "tap" or "--deadline" in command else ["--deadline", "0.25"]
        assert main([*command, *self._head, *patience]) == code
        output = self._capsys.readouterr()
        return output.out if code == OK else output.err

    def json(self, *command: str) -> dict[str, object]:
        output: dict[str, object] = json.loads(self.text(*command, "--json"))
        return output


def line_of(text: str, *words: str) -> str:
    found = [line for line in text.splitlines() if all(word in line for word in words)]
    assert found, f"no line with {words} in:\n{text}"
    return found[0]


def test_ps_shows_every_actor_and_unresponsive_ones(look: Look) -> None:
    output = look.text("ps")
    row = line_of(output, "falls")
    assert "0/1024" in row
    assert "ValueError: it fell" in row
    assert line_of(output, "spot-2").split()[-1] == "-"
    assert "no answer" in line_of(output, "spot-2/agent")
    assert SILENT in output
    assert look.json("ps")["silent"] == ["spot-2/agent"]


def test_ps_shows_processes_that_others_suspect() -> None:
    def state(process: str, suspects: dict[str, float]) -> SystemState:
        actor = ActorState(
            name=f"{process}/actor",
            incarnation=1,
            state="running",
            mailbox=0,
            handled=0,
            dropped=0,
            restarts=0,
            last_failure="",
        )
        return SystemState(
            node="node",
            process=process,
            pid=1,
            endpoint=f"tcp://{process}",
            actors=[actor],
            refused={},
            dead_letters={},
            suspects=suspects,
        )

    seen = Processes([state("watches", {"tcp://silent": 9.0}), state("silent", {})], [])
    assert [str(cells[4]) for cells in rows(seen)] == ["running", "suspect"]


def test_tree_names_the_unresponsive_host(look: Look) -> None:
    output = look.text("tree")
    assert "head/actors  one_for_one" in output
    assert SILENT in output


def test_top_once_shows_processes_and_sorted_actors(look: Look) -> None:
    output = look.text("top", "--once", "--interval", "0.1", "--sort", "restarts")
    assert "3 hosts" not in output
    assert "2 hosts   2 processes" in output
    actors = output[output.index("ACTOR ") :]
    assert actors.splitlines()[1].split()[1] == "falls"
    assert SILENT in output
    assert "\x1b" not in output
    board = look.json("top", "--once", "--interval", "0.1")
    assert {it["process"] for it in board["processes"]} == {"agent", "engine"}
    assert set(board["rates"]) >= {"falls", "stuck", "asker", "registry"}


def test_waits_show_waiter_subject_and_peer(look: Look) -> None:
    output = look.text("waits")
    row = line_of(output, "asker")
    assert "answer to Ping" in row
    assert "stuck#" in row
    [wait] = [it for it in look.json("waits")["waits"] if it["who"] == "asker"]
    assert 0 < wait["since_s"] < 300
    assert 0 < wait["left_s"] < 300
    assert (wait["node"], wait["process"]) == ("spot-1", "engine")
    assert "REASON" in look.text("waits", "--expired")


def test_dead_letters_are_counted_by_reason_and_shown(look: Look) -> None:
    output = look.text("deadletters")
    assert line_of(output, "head/agent", "no such actor").split()[0] == "1"
    assert "gone" in line_of(output, "Ping")
    [sample] = look.json("deadletters", "--reason", "no such*")["samples"]
    assert (sample["kind"], sample["to"], sample["node"]) == ("Ping", "gone", "head")
    assert sample["ago_s"] > 0
    assert "no dead letters" in look.text("deadletters", "--reason", "never heard of")


def test_actor_is_described_with_causes_of_last_failure(look: Look) -> None:
    output = look.text("describe", "falls")
    assert "Answers, falls, or is stuck" in output.splitlines()[0]
    assert "head/actors" in line_of(output, "supervisor")
    assert "one_for_one" in line_of(output, "supervisor")
    assert "Fall (system)" in output
    assert "ValueError: it fell (" in output
    assert "caused by OSError: no ground" in output
    assert "7" in line_of(output, "served")
    waiting = look.json("describe", "asker")
    assert [it["on"].partition("#")[0] for it in waiting["waits"]] == ["stuck"]


def test_missing_or_silent_actor_is_reported(look: Look) -> None:
    assert "did you mean falls?" in look.text("describe", "fals", code=NOTHING)
    assert "does not answer" in look.text("describe", "spot-2/agent", code=FAILED)


def test_tap_shows_passing_messages_and_is_removed(look: Look, cluster: LookedAt) -> None:
    def talk() -> None:
        for number in range(3):
            cluster.tell("falls", Ping(text=f"number {number}"))

    for delay_s in (0.5, 1.0, 2.0, 4.0, 8.0):  # until a tap is open, nothing is seen
        cluster.call_later(delay_s, talk)
    output = look.text(
        "tap", "--actor", "fal*", "--kind", "Ping", "--count", "2", "--seconds", "20", "--json"
    )
    seen = [json.loads(line) for line in output.splitlines()]
    assert [it["body"]["text"] for it in seen] == ["number 0", "number 1"]
    assert {(it["mode"], it["to"], it["process"]) for it in seen} == {("tell", "falls", "agent")}
    assert cluster.head.tap is None
    cluster.call_later(0.5, talk)
    shown = look.text("tap", "--actor", "falls", "--count", "1", "--seconds", "20")
    assert "(runtime) -> falls tell Ping" in shown


def test_tap_that_sees_nothing_reports_it(look: Look, capsys: pytest.CaptureFixture[str]) -> None:
    assert look.text("tap", "--actor", "nobody", "--seconds", "0.2") == ""


@pytest.mark.parametrize(
    "command",
    [
        ("waits", "--limit", "0"),
        ("deadletters", "--limit", "-1"),
        ("tap", "--count", "0"),
        ("tap", "--rate", "1e9"),
        ("top", "--interval", "0"),
        ("top", "--deadline", "0"),
    ],
)
def test_meaningless_numbers_are_refused(look: Look, command: tuple[str, ...]) -> None:
    errors = look.text(*command, code=USAGE)
    assert f"{command[1]} " in errors
    assert "expected" in errors


def test_idle_folder_gives_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["top"], ["tap"], ["waits"], ["deadletters"], ["describe", "falls"]):
        assert main([*command, "--runs-dir", str(tmp_path)]) == NOTHING
        assert capsys.readouterr().err.startswith("error: ")


def test_live_view_keys_sort_and_quit(look: Look, cluster: LookedAt, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs in a terminal of its own, as for a user."""
    mine, theirs = pty.openpty()
    argv = [sys.executable, "-m", "gleaner.rlctl", "top", "--head", cluster.endpoint, "--interval", "30"]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "60", "LINES": "16"}
    ran = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    seen = ""
    try:
        for wanted, key in (("RATE/s▾", b"m"), ("MAILBOX▾", b"q")):
            while wanted not in seen:
                assert select.select([mine], [], [], 30.0)[0], f"no {wanted} in {seen!r}"
                seen += os.read(mine, 65536).decode(errors="replace")
            os.write(mine, key)
        assert ran.wait(60.0) == OK
        while select.select([mine], [], [], 0.0)[0]:
            try:
                seen += os.read(mine, 65536).decode(errors="replace")
            except OSError:
                break  # the end of its output
    finally:
        ran.kill()
        ran.wait()
        os.close(mine)
    assert "LAST FAILURE" not in seen, "a narrow terminal gets fewer columns"
    assert "\x1b[?1049l" in seen, "the screen is restored"
