"""The reward service of a host: announced while it runs, found by jobs, refused with the reason."""

import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gleaner.configs.load import ConfigError, from_tree
from gleaner.nodeagent import reward_discovery
from gleaner.nodeagent.reward_discovery import NoService, require_tasks, resolved
from gleaner.nodeagent.standalone_rewards import _Announced


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.delenv(reward_discovery.VARIABLE, raising=False)
    return tmp_path / "state"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        allowed = self.headers.get("Authorization") == "Bearer k"
        body = json.dumps({"tasks": ["sums"]}).encode()
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def shared(by: str, task: str = "sums", key_env: str = "") -> object:
    return {"task": {"name": task}, "reward": {"share": {"with": by, "key_env": key_env}}}


def test_service_is_found_while_it_runs_and_not_afterwards(state: Path) -> None:
    config = from_tree(shared("cluster"), "test")
    with pytest.raises(NoService, match="no reward service runs on this host"):
        resolved(config)
    reward_discovery.publish("http://here:1")
    assert resolved(config).reward.share.with_ == "http://here:1"
    reward_discovery.withdraw()
    with pytest.raises(NoService):
        resolved(config)
    (state / "reward-service.json").write_text(json.dumps({"url": "http://dead:1", "pid": 2**22 + 5}))
    with pytest.raises(NoService):
        resolved(config)
    (state / "reward-service.json").write_text("garbage")
    with pytest.raises(NoService):
        resolved(config)


def test_withdrawal_leaves_the_file_of_another_service(state: Path) -> None:
    reward_discovery.publish("http://here:1")
    other = {"url": "http://other:1", "pid": os.getppid()}
    (state / "reward-service.json").write_text(json.dumps(other))
    reward_discovery.withdraw()
    assert resolved(from_tree(shared("cluster"), "test")).reward.share.with_ == "http://other:1"


def test_variable_names_a_service_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(reward_discovery.VARIABLE, "http://far:2")
    assert resolved(from_tree(shared("cluster"), "test")).reward.share.with_ == "http://far:2"
    config = from_tree(shared("http://named:3"), "test")
    assert resolved(config) is config


def test_service_must_have_the_tasks_of_a_job(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "k")
    require_tasks(from_tree(shared(url, key_env="THE_KEY"), "test"))
    with pytest.raises(NoService, match="has no task named other; it has sums"):
        require_tasks(from_tree(shared(url, "other", "THE_KEY"), "test"))
    with pytest.raises(NoService, match="answered 401: set reward.share.key_env"):
        require_tasks(from_tree(shared(url), "test"))
    with pytest.raises(NoService, match="cannot be used"):
        require_tasks(from_tree(shared("http://127.0.0.1:9"), "test"))


def test_share_that_cannot_be_is_refused() -> None:
    for share in ({"with": "here"}, {"with": "http://user@host"}, {"with": "cluster", "deadline_s": 0}):
        with pytest.raises(ConfigError, match=r"reward\.share"):
            from_tree({"reward": {"share": share}}, "test")
    with pytest.raises(ConfigError, match=r"stages\.separate"):
        from_tree({"reward": {"share": {"with": "cluster"}, "stages": {"separate": True}}}, "test")
    with pytest.raises(ConfigError, match=r"reward\.share\.wiht: unknown key"):
        from_tree({"reward": {"share": {"wiht": "cluster"}}}, "test")


class _Entry:
    """Listens at once."""

    async def start(self) -> str:
        return "http://here:1"

    async def close(self) -> None:
        pass


async def test_service_serves_where_its_file_cannot_be_written(state: Path, tmp_path: Path) -> None:
    """Jobs find it by its URL then."""
    (tmp_path / "state").write_text("no folder")
    announced: list[str] = []
    assert await _Announced(_Entry(), [], announced.append).start() == "http://here:1"
    assert announced == ["http://here:1"]
