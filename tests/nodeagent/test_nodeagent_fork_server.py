"""A node agent whose machine has no process left for a fork server."""

import pytest

from gleaner.nodeagent import __main__ as command
from gleaner.supervisor.fork_server.client import ForkServer


def test_node_agent_goes_on_without_a_fork_server_it_cannot_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def start() -> ForkServer:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    assert command._server_of(start) is None
    assert "no fork server, so processes are executed" in capsys.readouterr().err
