"""The command that fuzzes the sockets of a real node agent, with and without keys."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gleaner.chaos import socket_fuzz
from gleaner.transport.keys import NodeKeys

sys.path.insert(0, str(Path(__file__).parents[1] / "nodeagent"))

from real_nodes import Nodes

pytestmark = [pytest.mark.realprocess, pytest.mark.timeout(300)]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    running = Nodes(tmp_path)
    yield running
    running.close()


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "curve"])
def test_fuzzed_node_agent_survives_and_reports_refusals(
    keyed: bool, nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--role", "head"]
    if keyed:
        NodeKeys.generate().save(tmp_path / "keys")
        options += ["--keys", str(tmp_path / "keys")]
    nodes.start("head", *options)
    code = socket_fuzz.main(["--state-dir", str(tmp_path / "head"), "--rounds", "1"])
    output = capsys.readouterr().out
    assert code == 0, output + nodes.output("head")
    assert "seed 0: held out;" in output
    assert "'handshake'" in output
    assert ("'bad-field'" in output) == (not keyed)  # with keys no message passed the handshake
    assert "Traceback" not in nodes.output("head")


def test_fuzzing_without_an_agent_is_refused(tmp_path: Path) -> None:
    assert socket_fuzz.main(["--state-dir", str(tmp_path)]) != 0
