"""Missing engines, addresses and heads: reported before a model is made or a host is started."""

import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tiny_command import CONFIG, Rlctl

from gleaner.actors.model.config_text import hub_settings
from gleaner.actors.model.qwen3_config import Qwen3Config
from gleaner.configs.load import load
from gleaner.configs.schema import Config
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


def widths_config(widths: str, model: list[str]) -> Config:
    return load(str(CONFIG), ["engine.kind=sglang", f"engine.widths={widths}", *model])


@pytest.mark.parametrize(
    ("widths", "model"),
    [
        ("[1,2]", ["model.heads=3", "model.kv_heads=3"]),
        ("[4]", ["model.heads=6", "model.kv_heads=2"]),
        ("[2]", ["model.heads=4", "model.kv_heads=4", "model.intermediate_size=191"]),
        ("[2]", ["model.heads=6", "model.kv_heads=3"]),
    ],
)
def test_width_that_the_model_cannot_have_is_reported(tmp_path: Path, widths: str, model: list[str]) -> None:
    found = preflight.problems(widths_config(widths, model), tmp_path, here=False)
    assert len(found) == 1
    assert "engine.widths" in found[0]
    assert "leave " in found[0]


def test_width_that_a_checkpoint_cannot_have_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    shape = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        eos_token_ids=(1,),
    )
    (folder / "config.json").write_bytes(hub_settings(msgspec.json.encode(shape), "float32"))
    at = f"model.path={folder}"
    assert preflight.problems(widths_config("[1,2]", [at]), tmp_path, here=False) == []
    [found] = preflight.problems(widths_config("[1,2,4]", [at]), tmp_path, here=False)
    assert "4 devices cannot share 2 heads, 1 of keys and values, and 64 columns of the MLP" in found


def test_widths_that_the_model_can_have_are_taken(tmp_path: Path) -> None:
    model = ["model.heads=8", "model.kv_heads=2"]
    assert preflight.problems(widths_config("[1,2,4,8]", model), tmp_path, here=False) == []
