"""Widths of real SGLang servers in a whole run: a host of two core groups as two devices.

The server of width 2 has its model over two processes, that of width 1 has two copies.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_kinds import ONE_THREAD, ROOT, SGLANG
from engines_world import START_S, Server, logprobs_of, plane, publish_image, request

from gleaner.actors.engine.images.checkpoint_folder import ServedFolder
from gleaner.actors.engine.servers.factory import Spread, sglang_command
from gleaner.actors.engine.servers.server_process import ServerProcess, free_port
from gleaner.actors.engine.servers.sglang import environment
from gleaner.actors.engine.servers.sglang_weights import PLUGIN
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


@pytest.fixture(autouse=True)
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := SGLANG.why_not():
        pytest.skip(reason)
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RealRun]:
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


@pytest.fixture(params=[Spread(2, 1), Spread(1, 2)], ids=["width 2", "2 copies"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server that has its model over two processes, with its first weights."""
    folder, url = ServedFolder(), f"http://127.0.0.1:{free_port()}"
    model = folder.write(publish_image(tmp_path / "first", 1))
    command = sglang_command(SGLANG.settings(), url, model, "v1-none", request.param)
    running = Server(url, ServerProcess(command, environment() | ONE_THREAD, tmp_path / "log", PLUGIN))
    try:
        running.wait(time.monotonic() + START_S)
        yield running
    finally:
        running.kill()
        folder.remove()


async def test_every_process_of_a_server_has_the_new_weights_when_they_are_loaded(
    server: Server, tmp_path: Path
) -> None:
    async with plane(tmp_path, SGLANG) as running:
        await running.publish(3)
        await running.instance("s1", server.url)
        for number in range(4):  # copies answer in turn
            asked = request(f"r{number}", number, temperature=0.7)
            made = await running.generate(asked)
            reported = torch.from_numpy(np.frombuffer(made.logprobs, "<f4").copy())
            ours = logprobs_of(3, asked.prompt, made.tokens, 0.7)
            assert torch.allclose(reported, ours, atol=1e-4), f"{(reported - ours).abs().max()}"
