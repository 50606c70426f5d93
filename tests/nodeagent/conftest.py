"""Fixtures of the node agent's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from real_nodes import Nodes


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    running = Nodes(tmp_path)
    yield running
    running.close()
