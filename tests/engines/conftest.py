"""Servers that every test of engines shares: starting one takes longer than all that is asked of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from engines_world import Servers, why_not


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Two real ones; skips aloud where SGLang is not installed."""
    if reason := why_not():
        pytest.skip(reason)
    running = Servers(Path(tmp_path_factory.mktemp("servers")))
    yield running
    running.close()
