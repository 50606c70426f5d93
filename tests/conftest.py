"""Settings and fixtures of all tests: patient timing, one PostgreSQL server.

No result depends on the speed of the machine.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from patient_loop import be_patient
from postgres_server import PostgresServer, why_not

from tests.ci.missed import MISSED

settings.register_profile("gleaner", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gleaner")
be_patient()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell leaves it ignored in its background processes
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests send it to the processes that they start
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup leaves it ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

ENGINES = Path(__file__).parent / "engines"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note the tests that two parts of `make test` would miss: they import some files only (`tests/ci`)."""
    config.stash[MISSED] = [
        item.nodeid
        for item in items
        if (item.get_closest_marker("alone") and "mark.alone" not in item.path.read_text())
        or (item.get_closest_marker("engines") and ENGINES not in item.path.parents)
    ]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server; skips with a message where there is none."""
    if reason := why_not():
        pytest.skip(reason)
    server = PostgresServer()
    with pytest.MonkeyPatch.context() as patched:
        # Neither side is given up for being slow, unless a test requests it.
        for limit in ("IDLE_S", "CONNECT_S"):
            patched.setattr(f"gleaner.supervisor.journal.postgres_layout.{limit}", 600)
        try:
            server.start()
            yield server
        finally:
            server.close()
