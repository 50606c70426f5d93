"""Servers that all tests of engines share, since the start of a server takes longer than its tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_kinds import SGLANG, VLLM, Kind
from engines_world import Servers
from talking import Talking

KINDS = [pytest.param(SGLANG, id="sglang"), pytest.param(VLLM, id="vllm", marks=pytest.mark.vllm)]


@pytest.fixture(scope="session", params=KINDS)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Two real servers of a kind. Skips with a reason if the kind is not installed. Groups tests by kind."""
    kind: Kind = request.param
    if reason := kind.why_not():
        pytest.skip(reason)
    running = Servers(Path(tmp_path_factory.mktemp("servers")), kind)
    yield running
    running.close()


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talking]:
    """Two real SGLang servers of a chat model behind a gateway, for one module: tests kill them."""
    if reason := SGLANG.why_not():
        pytest.skip(reason)
    running = Talking(tmp_path_factory.mktemp("talking"))
    yield running
    running.close()
