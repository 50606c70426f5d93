"""Engines, addresses and heads that are not there: told before a model is made or a host is started."""

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
    """Nothing here may come so far that a model is made."""

    def made(*_: object) -> None:
        raise AssertionError("a model was made before everything was tried")

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
def test_what_a_job_needs_of_this_machine_and_has_not_is_told_at_once(
    refused: Rlctl, sets: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("late.csv").write_text("t_seconds,event,instance_id\n5,add,spot-1\n")
    code, said = refused(str(CONFIG), *(part for text in sets for part in ("--set", text)))
    assert code == USAGE
    assert word in said


def test_a_gateway_port_in_use_is_told_at_once(refused: Rlctl, taken: int) -> None:
    code, said = refused(str(CONFIG), "--set", f"gateway.listen=127.0.0.1:{taken}")
    assert code == USAGE
    assert f"gateway.listen: 127.0.0.1:{taken} is in use by another process" in said


def test_an_engine_is_not_looked_for_where_no_preemptible_host_is_wished_for(
    tmp_path: Path,
) -> None:
    config = load(str(CONFIG), ["engine.kind=sglang", "fleet.n_prem_max=0"])
    assert preflight.problems(config, tmp_path) == []


def test_a_head_that_does_not_answer_is_told_before_a_folder_or_a_model_is_made(
    refused: Rlctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gleaner.rlctl.drive.PROBE_S", 0.5)
    code, said = refused(str(CONFIG), "--head", "tcp://127.0.0.1:1", "--set", "engine.kind=sglang")
    assert code == NOTHING
    assert "no head answers at tcp://127.0.0.1:1" in said
    assert "sglang" not in said, "what its hosts have is theirs to look at"
