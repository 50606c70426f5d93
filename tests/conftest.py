"""What holds for every test: nothing depends on how fast the machine is; one PostgreSQL server serves all."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from patient_loop import be_patient
from postgres_server import PostgresServer, why_not

settings.register_profile("gleaner", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gleaner")
be_patient()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it in its background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests send it to what they start
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as nohup has it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server; skips aloud where there is none."""
    if reason := why_not():
        pytest.skip(reason)
    server = PostgresServer()
    with pytest.MonkeyPatch.context() as patched:
        # Neither side is given up for being slow, where a test does not ask for that.
        for limit in ("IDLE_S", "CONNECT_S"):
            patched.setattr(f"gleaner.supervisor.journal.postgres_layout.{limit}", 600)
        try:
            server.start()
            yield server
        finally:
            server.close()
