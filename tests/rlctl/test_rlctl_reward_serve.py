"""`rlctl reward serve`: starts, scores, ends in order; refuses what it cannot serve before it listens."""

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from gleaner.rlctl.__main__ import main
from gleaner.rlctl.errors import NOTHING, USAGE

FUNCTION = """
def score(response, answer):
    return float(answer in response)
"""
JOB = """
[[task]]
name = "sums"
data = "none.jsonl"

[reward]
workers = 1

[reward.function]
call = "rewards_served:score"
deadline_s = 2.0
"""
LIMIT_S = 120


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rewards_served.py").write_text(FUNCTION)
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "keys.txt").write_text("a-key\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started(*words: str) -> "subprocess.Popen[str]":
    program = [sys.executable, "-m", "gleaner.rlctl", "reward", "serve", *words]
    environment = {name: value for name, value in os.environ.items() if name != "GLEANER_API_KEYS"}
    return subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def alive(process: psutil.Process) -> bool:
    """Whether it runs: one that has ended may wait for its parent to take note."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.realprocess
def test_service_scores_and_ends_in_order_on_sigterm(folder: Path) -> None:
    served = started("job.toml", "--listen", "127.0.0.1:0", "--api-keys", "keys.txt", "--json")
    try:
        assert served.stdout is not None
        first = json.loads(served.stdout.readline())
        assert first["tasks"] == ["sums"]
        body = json.dumps({"prompt": "1+1?", "response": "It is 2", "label": "2"}).encode()
        call = urllib.request.Request(f"{first['url']}/rm", data=body)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(call, timeout=LIMIT_S)
        call.add_header("Authorization", "Bearer a-key")
        with urllib.request.urlopen(call, timeout=LIMIT_S) as answer:
            assert json.loads(answer.read()) == 1.0
        below = psutil.Process(served.pid).children(recursive=True)
        assert below, "it has worker processes"
        served.send_signal(signal.SIGTERM)
        _, errors = served.communicate(timeout=LIMIT_S)
        assert (served.returncode, errors) == (0, "")
        assert not [process for process in below if alive(process)]
    finally:
        served.kill()
        served.communicate()


@pytest.mark.long
@pytest.mark.realprocess
def test_scorer_that_cannot_be_loaded_ends_the_start(folder: Path) -> None:
    served = started("job.toml", "--listen", "127.0.0.1:0", "--set", "reward.function.call=rewards_served:no")
    out, errors = served.communicate(timeout=LIMIT_S)
    assert (served.returncode, out) == (USAGE, "")
    assert "rewards_served" in errors


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--listen", "nonsense"], "expected HOST:PORT"),
        (["--workers", "0"], "expected 1 or more"),
        (["--set", "reward.wokers=2"], "did you mean reward.workers?"),
        (["--set", "reward.jobs.guaranteed.a=2"], "2 workers are guaranteed to all jobs, and there are 1"),
    ],
)
def test_unusable_options_are_refused_by_name(
    folder: Path, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reward", "serve", "job.toml", *words]) == USAGE
    assert why in capsys.readouterr().err


class Client(threading.Thread):
    """A trainer of one job, which scores `count` responses one after the other and repeats what has no
    score."""

    def __init__(self, url: str, job: str, count: int) -> None:
        super().__init__(daemon=True)
        self._url, self._job, self._count = url, job, count
        self.scores: list[float] = []
        self.again = 0

    def run(self) -> None:
        for number in range(self._count):
            response = f"It is {number}" if number % 3 else "It is nothing"
            body = json.dumps({"prompt": "", "response": response, "label": str(number)}).encode()
            self.scores.append(self._scored(body))

    def _scored(self, body: bytes) -> float:
        headers = {"X-Gleaner-Job": self._job}
        while True:
            call = urllib.request.Request(f"{self._url}/rm", data=body, headers=headers)
            try:
                with urllib.request.urlopen(call, timeout=LIMIT_S) as answer:
                    return float(answer.read())
            except urllib.error.HTTPError as problem:
                if problem.code != 503:
                    raise
                self.again += 1


@pytest.mark.long
@pytest.mark.realprocess
def test_two_jobs_get_each_score_once_while_workers_are_killed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = started(
        "job.toml", "--listen", "127.0.0.1:0", "--json", "--workers", "2", "--set", "reward.jobs.losses=0"
    )
    try:
        assert served.stdout is not None
        url = json.loads(served.stdout.readline())["url"]
        clients = [Client(url, job, 150) for job in ("code", "math")]
        for client in clients:
            client.start()
        for number in range(6):
            time.sleep(0.5)
            workers = psutil.Process(served.pid).children()
            if workers:
                workers[number % len(workers)].kill()
        for client in clients:
            client.join(LIMIT_S)
            assert not client.is_alive()
            assert client.scores == [float(number % 3 != 0) for number in range(150)]
        assert main(["reward", "ps", "--url", url, "--json"]) == 0
        jobs = {job["name"]: job for job in json.loads(capsys.readouterr().out)["jobs"]}
        assert {name: (job["scored"], job["queued"], job["running"]) for name, job in jobs.items()} == {
            "code": (150, 0, 0),
            "math": (150, 0, 0),
        }
        assert main(["reward", "ps", "--url", url]) == 0
        assert "WORKER TIME" in capsys.readouterr().out
    finally:
        served.send_signal(signal.SIGTERM)
        served.communicate(timeout=LIMIT_S)


def planned(url: str) -> list[int | None]:
    """Workers of each stage by the last plan."""
    with urllib.request.urlopen(f"{url}/state", timeout=LIMIT_S) as answer:
        return [stage["planned"] for stage in json.loads(answer.read())["stages"]]


def planner_of(service: psutil.Process) -> psutil.Process | None:
    """The service's planner process."""
    for process in service.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "reward-planner" in process.cmdline() and alive(process):
                return process
    return None


@pytest.mark.long
@pytest.mark.realprocess
@pytest.mark.parametrize("hosts", ["0", "1"])
def test_service_has_a_plan_and_another_planner_when_that_is_killed(folder: Path, hosts: str) -> None:
    words = ["--set", "reward.planner.kind=distrs", *(["--hosts", hosts] if hosts != "0" else [])]
    served = started("job.toml", "--listen", "127.0.0.1:0", "--json", *words)
    try:
        assert served.stdout is not None
        url, service = json.loads(served.stdout.readline())["url"], psutil.Process(served.pid)
        deadline_s = time.monotonic() + LIMIT_S
        killed = None
        while True:
            assert time.monotonic() < deadline_s
            client = Client(url, "code", 3)
            client.run()
            planner = planner_of(service)
            if planner is None or planned(url) == [None]:
                continue
            if killed is None:
                killed = planner.pid
                planner.kill()
            elif planner.pid != killed:
                break
        below = service.children(recursive=True)
        served.send_signal(signal.SIGTERM)
        served.communicate(timeout=LIMIT_S)
        assert not [process for process in below if alive(process)]
    finally:
        served.kill()
        served.communicate()


class Garbage(http.server.BaseHTTPRequestHandler):
    """Answers with what is no state."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>not a state</html>")

    def log_message(self, *_words: object) -> None: ...


def test_answer_of_another_server_is_an_error_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Garbage) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert main(["reward", "ps", "--url", f"http://127.0.0.1:{server.server_port}"]) == NOTHING
    assert "malformed" in capsys.readouterr().err


def test_state_of_no_service_is_an_error_with_its_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reward", "ps", "--url", "http://127.0.0.1:9"]) == NOTHING
    assert "no reward service answers at http://127.0.0.1:9: " in capsys.readouterr().err
    assert main(["reward", "ps", "--url", "localhost:8900"]) == USAGE
