"""A client of the gateway that streams from a real run.

The run's engine and manager are killed meanwhile.
"""

import json
import urllib.request
from collections.abc import Iterator

import pytest
from real_runs import MakeRun, RealRun

from gleaner.chaos.run_processes import find

pytestmark = [pytest.mark.realprocess, pytest.mark.timeout(900)]

LENGTH = 256
DEADLINE_S = 600


def gateway_of(run: RealRun) -> str:
    """The endpoint of the run's gateway."""
    texts: list[str] = []

    def serves() -> bool:
        log = run.run.nodes / "head" / "logs" / "gateway.log"
        lines = log.read_text().splitlines() if log.exists() else []
        texts[:] = [line.rpartition(" ")[2] for line in lines if "serves HTTP at" in line]
        return bool(texts)

    run.wait(serves, "the gateway")
    return texts[-1]


def ask(url: str, rid: str) -> Iterator[dict[str, object]]:
    """Stream the one request of this test under this id, event by event."""
    body = {
        "rid": rid,
        "input_ids": [5, 9, 11],
        "sampling_params": {"max_new_tokens": LENGTH, "ignore_eos": True, "sampling_seed": 7},
        "return_logprob": True,
        "stream": True,
    }
    headers = {"Content-Type": "application/json", "X-Request-Deadline-S": str(DEADLINE_S)}
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        for line in response:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                yield json.loads(line.removeprefix(b"data: "))


def test_stream_continues_after_engine_and_manager_death(
    make_run: MakeRun,
) -> None:
    # One long step, all of it under the initial weights: the compared tokens are made under version 0.
    run = make_run(
        "gateway.listen=127.0.0.1:0",
        "job.steps=1",
        "rollout.prompts=256",
        "rollout.samples=8",
        "seeding.initial_s=0",
        "seeding.max_s=0",
        "fleet.n_prem_max=1",
    )
    run.start()
    url = gateway_of(run)
    *_, calm = ask(url, "calm")
    killed: list[str] = []
    storm: dict[str, object] = {}
    for storm in ask(url, "storm"):
        if not killed:
            assert 0 < len(storm["output_ids"]) < LENGTH  # type: ignore[arg-type]
            for kind in ("rollout", "engine"):
                for victim in find(run.run, kind, ""):
                    victim.kill()
                    killed.append(kind)
    assert {"rollout", "engine"} <= set(killed)
    meta, calmly = storm["meta_info"], calm["meta_info"]
    assert storm["output_ids"] == calm["output_ids"]
    assert len(storm["output_ids"]) == LENGTH  # type: ignore[arg-type]
    assert meta["finish_reason"] == calmly["finish_reason"] == {"type": "length", "length": LENGTH}  # type: ignore[index]
    assert (
        meta["weight_versions"] == calmly["weight_versions"] == [{"version": "0", "start": 0, "end": LENGTH}]
    )  # type: ignore[index]
    logprobs = [row[0] for row in meta["output_token_logprobs"]]  # type: ignore[index]
    expected = [row[0] for row in calmly["output_token_logprobs"]]  # type: ignore[index]
    assert logprobs == pytest.approx(expected, abs=1e-3)
    *_, again = ask(url, "storm")  # the same id is the same request, and it is over
    assert again["output_ids"] == storm["output_ids"]
