"""A reward service on loopback: the real server, service and proxy, and workers without processes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from small_service import CONFIG, KEY, Service, serving


@pytest.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    monkeypatch.setenv("GLEANER_API_KEYS", KEY)
    async with serving(tmp_path, CONFIG) as service:
        yield service
