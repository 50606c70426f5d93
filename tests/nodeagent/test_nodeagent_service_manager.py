"""Notifications of a node agent to the service manager that started it."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from gleaner.nodeagent.service_manager import READY, SIGNS, WATCHDOG, ServiceManager, SignsOfLife
from gleaner.supervisor.virtual_time import VirtualLoop


@pytest.fixture
def manager(tmp_path: Path) -> socket.socket:
    """The socket of a service manager."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(tmp_path / "notify"))
    listener.settimeout(10.0)
    return listener


def test_manager_is_notified_at_its_socket(manager: socket.socket, tmp_path: Path) -> None:
    env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "20000000", "PATH": "/bin"}
    service = ServiceManager.of(env)
    assert service.watchdog_s == 20.0
    assert env == {"PATH": "/bin"}, "children do not get the variables of this process alone"
    service.notify(READY)
    assert manager.recv(64) == b"READY=1"
    manager.close()


def test_abstract_socket_is_notified() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0gleaner-{os.getpid()}")
        listener.settimeout(10.0)
        ServiceManager(f"@gleaner-{os.getpid()}").notify(READY)
        assert listener.recv(64) == b"READY=1"


def test_nothing_is_sent_without_a_manager() -> None:
    service = ServiceManager.of({"WATCHDOG_USEC": "20000000"})
    assert service == ServiceManager()
    service.notify(READY)


def test_watchdog_of_another_process_is_ignored(tmp_path: Path) -> None:
    env = {"NOTIFY_SOCKET": str(tmp_path), "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
    assert ServiceManager.of(env).watchdog_s == 0.0


def test_manager_that_is_gone_does_no_harm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager(str(tmp_path / "gone")).notify(READY)
    assert "did not take READY=1" in caplog.text


def test_signs_of_life_repeat_within_the_watchdog_time() -> None:
    sent: list[tuple[float, str]] = []
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:

        async def live() -> None:
            loop = asyncio.get_running_loop()
            signs = SignsOfLife(lambda state: sent.append((loop.time(), state)), 20.0)
            await asyncio.sleep(39.0)
            signs.close()
            await asyncio.sleep(60.0)

        runner.run(live())
    assert {state for _, state in sent} == {WATCHDOG}
    assert len(sent) == 2 * SIGNS


def test_shipped_unit_matches_the_agent_notifications() -> None:
    unit = (Path(__file__).parents[2] / "nodeagent" / "gleaner-nodeagent.service").read_text().splitlines()
    assert {"Type=notify", "WatchdogSec=20", "WatchdogSignal=SIGKILL"} <= set(unit)
