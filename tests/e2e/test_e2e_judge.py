"""A job that serves its own judge beside its engine, with layers in host memory; the judge is killed once."""

import socket
from pathlib import Path

import pytest
from real_runs import RealRun

from gleaner.actors.engine.builtin.layer_budget import layer_bytes, sizes_of
from gleaner.actors.model.qwen3_config import Qwen3Config
from tests.gateway.judge_model import make_judge

pytestmark = [pytest.mark.realprocess, pytest.mark.long, pytest.mark.timeout(900)]

LAYERS, RESERVE_MB = 24, 80
CONFIG = """
[job]
name = "judged"
steps = 3

[model.warm_start]
steps = 0

[[task]]
name = "letters"
data = "letters.jsonl"
verifier = "judge"

[rollout]
prompts = 4
samples = 4
max_new_tokens = 24

[fleet]
n_prem_max = 0

[reward]
workers = 2

[reward.judge]
place = "colocated"
rubric_text = "Right is 9."
scale = [0, 9]
temperature = 1.0
max_tokens = 400
attempts = 8

[reward.judge.colocated]
model_path = "judge"
reserve_mb = {reserve_mb}
listen = "127.0.0.1:{port}"
slots = 4
context_tokens = 2048
"""


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


def write_job(folder: Path, reserve_mb: int = RESERVE_MB) -> Path:
    folder.mkdir()
    model = make_judge(folder / "judge", 20, num_hidden_layers=LAYERS, intermediate_size=2048)
    layers_bytes = LAYERS * layer_bytes(sizes_of(Qwen3Config.load(model)))
    assert layers_bytes + (40 << 20) > reserve_mb << 20, "a call's activations leave no room for all layers"
    rows = [f'{{"prompt": "Write {number} letters."}}\n' for number in range(40)]
    (folder / "letters.jsonl").write_text("".join(rows))
    job = folder / "job.toml"
    job.write_text(CONFIG.format(reserve_mb=reserve_mb, port=free_port()))
    return job


def test_job_serves_its_judge_which_may_be_killed(tmp_path: Path) -> None:
    run = RealRun(tmp_path, write_job(tmp_path / "job"), [])
    try:
        run.start()
        run.until_step_after(0, "of judged responses")
        judge = run.one("judge", "reserved-1")
        judge.kill()
        run.replaced(judge)
        run.ends_whole()
    finally:
        run.close()
    report = run.report
    assert report.verdicts is not None
    counts = report.verdicts.counts
    assert counts["ok"] >= 3 * 16, counts
    assert run.restarts("reserved-1/judge") == 1
