"""Widths of real SGLang servers in a whole run: a host of two core groups as two devices.

The server of width 2 has its model over two processes, that of width 1 has two copies.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_kinds import ROOT, SGLANG

from gleaner.actors.protocol.instances import InstanceIs, InstancesAre, ListInstances
from gleaner.actors.training.history import Step
from gleaner.rlctl.client import connect_to_run
from gleaner.supervisor import AskFailed
from tests.e2e.real_runs import OPEN_ENDED, RealRun

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.timeout(1800)]

SERVED_S = 600.0  # until a server of the CPU has started; 20 to 90 s on two cores
SETTINGS = [
    OPEN_ENDED,
    "fleet.trace=",
    "fleet.n_prem_max=1",
    "model.heads=4",
    "model.kv_heads=4",
    "engine.widths=[2, 1]",
    "engine.width_plan=paper",  # no request loses its cache: the width halves after four steps
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealRun]:
    if reason := SGLANG.why_not():
        pytest.skip(reason)
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    made = RealRun(tmp_path, ROOT / "configs" / "sglang.toml", SETTINGS)
    yield made
    made.close()


async def _instance(run: RealRun) -> InstanceIs | None:
    """The instance with a server, while it serves."""
    with contextlib.suppress(AskFailed):
        async with connect_to_run(run.run) as cluster:
            known = await cluster.ask("rollout/manager", ListInstances(), expect=InstancesAre)
        return next((one for one in known.instances if one.kind == "preemptible" and one.executing), None)
    return None


def until_decoding(run: RealRun, after: int) -> InstanceIs:
    """Wait until the server of an incarnation after this one decodes."""
    found: list[InstanceIs] = []

    def decodes() -> bool:
        one = asyncio.run(_instance(run))
        found[:] = [one] if one is not None and one.incarnation > after else []
        return bool(found)

    run.wait(decodes, "a server that decodes", SERVED_S)
    return found[0]


def widths(run: RealRun) -> list[int]:
    return [record.width for record in run.look() if isinstance(record, Step)]


def test_run_goes_on_with_another_width_when_its_servers_are_relaunched(run: RealRun) -> None:
    run.start()
    run.wait(run.steps, "a step, which waits for a server", SERVED_S)
    wide = until_decoding(run, after=0)
    run.wait(lambda: 1 in widths(run), "a step of width 1")
    narrow = until_decoding(run, after=wide.incarnation)
    run.until_step_after(run.steps()[-1], "with the server of width 1")
    run.stops_whole()
    assert run.incarnations(wide.name) == [wide.incarnation, narrow.incarnation]
    assert set(widths(run)) == {2, 1}
    assert run.restarts(wide.name) == 0
