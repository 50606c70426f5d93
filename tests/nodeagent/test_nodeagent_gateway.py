"""Gateway of a head: its address, the hosts that may have one, and its keys."""

import socket
from pathlib import Path

import aiohttp
import msgspec
import pytest

from gleaner.actors.cluster.job import config_of, with_gateway
from gleaner.actors.gateway.ask import Requests
from gleaner.actors.gateway.fleet import Fleet
from gleaner.actors.protocol.cluster import JobSpec
from gleaner.configs.load import ConfigError, dump
from gleaner.configs.schema import Config, Gateway
from gleaner.nodeagent.__main__ import parse, start_options
from gleaner.nodeagent.exit_codes import CannotRun
from gleaner.nodeagent.gateway_http import (
    CONTROL_KEYS_VARIABLE,
    KEYS_VARIABLE,
    access_of,
    address_of,
    door_of,
)
from gleaner.transport.keys import RefusedToListen
from gleaner.transport.sockets import CannotListen


def config(**gateway: object) -> Config:
    return msgspec.structs.replace(Config(), gateway=Gateway(**gateway))  # type: ignore[arg-type]


def ports() -> tuple[Requests, Fleet]:
    from tests.actors.gateway.gateway_world import FakeFleet, FakeRequests

    return FakeRequests(), FakeFleet()


def test_keys_come_from_file_and_environment_once(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("alpha\n\n beta \n")
    settings = Gateway(listen="127.0.0.1:0", api_keys=str(file))
    assert access_of(settings, {KEYS_VARIABLE: "gamma,alpha"}).keys == ["gamma", "alpha", "beta"]
    control = Gateway(listen="gpu-7:0", control_keys=str(file), hosts=["head"])
    found = access_of(control, {CONTROL_KEYS_VARIABLE: "gamma"})
    assert (found.keys, found.control_keys, found.hosts) == (
        [],
        ["gamma", "alpha", "beta"],
        ["gpu-7", "head"],
    )
    assert access_of(Gateway(listen="127.0.0.1:0"), {}).keys == []
    file.write_text("\n")
    with pytest.raises(ConfigError, match="no key is there"):
        access_of(settings, {})
    with pytest.raises(ConfigError, match=r"gateway\.control_keys .*No such file"):
        access_of(Gateway(listen="127.0.0.1:0", control_keys=str(tmp_path / "none")), {})


def test_gateway_is_not_open_to_a_network_by_accident(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)
    for listen in ("0.0.0.0:0", "gpu-7:8000", "[::]:0"):
        with pytest.raises(RefusedToListen, match="gateway.open"):
            door_of(config(listen=listen), "m", None)(*ports())
    for settings in ({"listen": "0.0.0.0:0", "open": True}, {"listen": "127.0.0.1:0"}, {"listen": "[::1]:0"}):
        door_of(config(**settings), "m", None)(*ports())
    monkeypatch.setenv(KEYS_VARIABLE, "secret")
    door_of(config(listen="0.0.0.0:0"), "m", None)(*ports())


async def test_door_serves_at_its_address_and_requires_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, "secret")
    make = door_of(config(listen="127.0.0.1:0", server_info={"enable_memory_saver": True}), "tiny", tmp_path)
    door = make(*ports())
    url = await door.start()
    try:
        async with aiohttp.ClientSession() as client:
            assert (await client.get(f"{url}/server_info")).status == 401
            shown = {"Authorization": "Bearer secret"}
            info = await (await client.get(f"{url}/server_info", headers=shown)).json()
        assert (info["served_model_name"], info["enable_memory_saver"]) == ("tiny", True)
        taken = door_of(config(listen=url.removeprefix("http://")), "m", None)(*ports())
        with pytest.raises(CannotListen, match=r"gateway\.listen 127"):
            await taken.start()
        await taken.close()
    finally:
        await door.close()
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", int(url.rpartition(":")[2])))


@pytest.mark.parametrize("listen", ["8000", ":8000", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:70000"])
def test_invalid_address_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        address_of(listen)


def test_command_line_of_a_head_overrides_the_job_settings(tmp_path: Path) -> None:
    words = ["start", "--state-dir", str(tmp_path), "--gateway", "127.0.0.1:8000"]
    assert start_options(parse([*words, "--role", "head"])).gateway == "127.0.0.1:8000"
    with pytest.raises(CannotRun, match="only a head"):
        start_options(parse([*words, "--join", "tcp://127.0.0.1:1"]))
    with pytest.raises(CannotRun, match="expected HOST:PORT"):
        start_options(parse(["start", "--gateway", "8000"]))
    own = config(listen="127.0.0.1:1", max_concurrent=7)
    job = JobSpec(run_id="r", run_dir="d", model_dir="m", config=dump(own))
    moved = config_of(with_gateway(job, "127.0.0.1:8000")).gateway
    assert (moved.listen, moved.max_concurrent) == ("127.0.0.1:8000", 7)
