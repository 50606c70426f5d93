"""`rlctl reward top`: the tables once, live, and while the service does not answer."""

import http.server
import json
import os
import pty
import select
import subprocess
import sys
import threading
from collections.abc import Iterator

import msgspec
import pytest

from gleaner.actors.protocol.reward import (
    JobState,
    RewardBatchState,
    RewardHostState,
    RewardState,
    StageState,
)
from gleaner.rlctl.__main__ import main
from gleaner.rlctl.commands import reward_top
from gleaner.rlctl.errors import NOTHING, OK, USAGE, CommandError, nothing

STATE = RewardState(
    stages=[StageState(name="compile", workers=2, most=4, planned=3, queued=7, running=2, item_s=0.5)],
    hosts=[RewardHostState(name="rewards-1", workers={"compile": 2}, items=2, barred=["leaving"])],
    batches=[
        RewardBatchState(
            name="step-7",
            expected=64,
            arrived=40,
            scored=31,
            queued=7,
            running=2,
            age_s=12.0,
            complete_in_s=8.0,
            tolerated_s=0.2,
        )
    ],
    jobs=[
        JobState(
            name="math", weight=1.0, queued=7, running=2, scored=31, worker_s={"compile": 15.0}, lost=0,
            refused=0, sick_for_s=0.0,
        )
    ],
)  # fmt: skip


class Service(http.server.BaseHTTPRequestHandler):
    """A reward service of which all is read."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(msgspec.json.encode(STATE))

    def log_message(self, *_words: object) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_top_once_shows_stages_hosts_jobs_and_batches(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reward", "top", "--once", "--url", url]) == OK
    shown = capsys.readouterr().out
    for text in ("compile", "rewards-1", "leaving", "math", "step-7", "DELAY", "0.2 s"):
        assert text in shown
    assert main(["reward", "top", "--once", "--json", "--url", url]) == OK
    assert json.loads(capsys.readouterr().out)["batches"][0]["tolerated_s"] == 0.2


def test_top_without_a_first_answer_ends_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reward", "top", "--url", "http://127.0.0.1:9"]) == NOTHING
    assert "no reward service answers" in capsys.readouterr().err
    assert main(["reward", "top", "--interval", "0", "--url", "http://127.0.0.1:9"]) == USAGE
    assert "--interval 0: expected" in capsys.readouterr().err


async def test_view_goes_on_after_a_poll_without_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    answers: list[RewardState | CommandError] = [nothing("no job scores here now"), STATE]

    async def poll() -> RewardState:
        answer = answers.pop(0)
        if isinstance(answer, CommandError):
            raise answer
        return answer

    assert await reward_top._next(poll, 0.0) is STATE
    assert capsys.readouterr().err == "no job scores here now\n"


def test_live_view_ends_with_q_and_restores_the_screen(url: str) -> None:
    mine, theirs = pty.openpty()
    argv = [sys.executable, "-m", "gleaner.rlctl", "reward", "top", "--url", url, "--interval", "30"]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    ran = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    seen = ""
    try:
        while "step-7" not in seen:
            assert select.select([mine], [], [], 30.0)[0], f"no batch in {seen!r}"
            seen += os.read(mine, 65536).decode(errors="replace")
        os.write(mine, b"q")
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
    assert "\x1b[?1049l" in seen, "the screen is restored"
