"""Missing engines, addresses and heads: reported before a model is made or a host is started."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_command import CONFIG, Rlctl

from gleaner.configs.load import load
from gleaner.rlctl import preflight
from gleaner.rlctl.errors import NOTHING, USAGE


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which another process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that makes a model."""

    def made(*_: object) -> None:
        raise AssertionError("a model was made before all checks")

    monkeypatch.setattr("gleaner.rlctl.models.make", made)
    monkeypatch.setattr("gleaner.rlctl.models.check", made)


@pytest.mark.parametrize(
    ("sets", "word"),
    [
        (["engine.kind=sglang"], "sglang is not installed there; install it (`make engine-sglang`)"),
        (["engine.kind=vllm", "engine.environment=/nowhere"], "engine.environment /nowhere: no such folder"),
        (["engine.kind=sglang", "engine.url=http://127.0.0.1:1"], "engine.url: http://127.0.0.1:1"),
        (["network.bind=192.0.2.7"], "network.bind: this machine cannot listen at 192.0.2.7"),
        (["gateway.listen=192.0.2.7:80"], "gateway.listen: this machine cannot listen at 192.0.2.7:80"),
        (["fleet.await_instance=true", "fleet.trace=late.csv"], "has no instance at 0 s"),
    ],
)
def test_missing_requirement_of_this_machine_is_reported(
    refused: Rlctl, sets: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("late.csv").write_text("t_seconds,event,instance_id\n5,add,spot-1\n")
    code, stderr = refused(str(CONFIG), *(part for text in sets for part in ("--set", text)))
    assert code == USAGE
    assert word in stderr


def test_gateway_port_in_use_is_reported(refused: Rlctl, taken: int) -> None:
    code, stderr = refused(str(CONFIG), "--set", f"gateway.listen=127.0.0.1:{taken}")
    assert code == USAGE
    assert f"gateway.listen: 127.0.0.1:{taken} is in use by another process" in stderr


def test_engine_is_not_checked_without_preemptible_hosts(
    tmp_path: Path,
) -> None:
    config = load(str(CONFIG), ["engine.kind=sglang", "fleet.n_prem_max=0"])
    assert preflight.problems(config, tmp_path) == []


def test_silent_head_is_reported_before_anything_is_made(
    refused: Rlctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gleaner.rlctl.run_driver.PROBE_S", 0.5)
    code, stderr = refused(str(CONFIG), "--head", "tcp://127.0.0.1:1", "--set", "engine.kind=sglang")
    assert code == NOTHING
    assert "no head answers at tcp://127.0.0.1:1" in stderr
    assert "sglang" not in stderr, "the hosts of the head check their own engines"
