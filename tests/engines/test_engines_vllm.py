"""A vLLM server that an instance starts: without weights, fed from shared memory, ended with the instance."""

import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from driven_host import DrivenHost
from engine_kinds import VLLM
from engines_world import logprobs_of, publish_image

from gleaner.actors.engine.servers.vllm import VllmWire
from gleaner.actors.engine.worker.port import StepCommands
from gleaner.actors.protocol.instances import Work
from gleaner.actors.protocol.sampling_params import Sampling
from gleaner.transport.token_frame import Flag

pytestmark = [pytest.mark.vllm, pytest.mark.alone, pytest.mark.timeout(600)]

PROMPT = array("I", [5, 9, 11]).tobytes()
TOKENS = 40
END_S = 30.0


@pytest.fixture
def host() -> Iterator[DrivenHost]:
    if reason := VLLM.why_not():
        pytest.skip(reason)
    host = DrivenHost(VLLM.host(VLLM.settings()))
    yield host
    host.close()
    assert host.joined(END_S)


def made_by(host: DrivenHost, version: int, ticket: int, **more: object) -> tuple[list[int], list[float]]:
    """The whole response of one request, and its log-probs."""
    given = {"temperature": 0.0, "seed": 1, **more}
    work = Work(ticket=ticket, prompt=PROMPT, prefix=b"", max_new_tokens=TOKENS, **given)  # type: ignore[arg-type]
    orders, tokens, logprobs = StepCommands(adds=[(version, [work])]), [], []
    until_s = time.monotonic() + 60.0
    while time.monotonic() < until_s:
        turn = host.turn(orders)
        orders = StepCommands()
        assert not turn.refusals
        if turn.output is not None:
            tokens += turn.output.tokens.tolist()
            logprobs += turn.output.logprobs.tolist()
            if turn.output.flags[-1] & Flag.FINISHED:
                return tokens, logprobs
    raise AssertionError(f"{len(tokens)} tokens within a minute")


def test_server_starts_empty_loads_each_version_and_ends(host: DrivenHost, tmp_path: Path) -> None:
    wire = host.host._wire
    assert isinstance(wire, VllmWire)
    for version in (3, 4):
        turn = host.turn(StepCommands(load=publish_image(tmp_path / "store", version)))
        assert turn.version == version
        for ticket, temperature in enumerate((0.0, 0.6), start=10 * version):
            tokens, logprobs = made_by(host, version, ticket, temperature=temperature)
            ours = logprobs_of(version, PROMPT, array("I", tokens).tobytes(), temperature or 1.0)
            np.testing.assert_allclose(logprobs, ours, atol=1e-4)
    narrow = Sampling(top_k=1)
    assert made_by(host, 4, 90, temperature=1.0, sampling=narrow)[0] == made_by(host, 4, 91)[0]
    assert made_by(host, 4, 92, temperature=1.0, sampling=narrow)[1] == [0.0] * TOKENS
    assert wire._by_image, "its workers map the image"
    pid = wire.pid
    assert pid is not None
    host.close()
    assert host.joined(END_S)
    assert not Path(f"/proc/{pid}").exists()
