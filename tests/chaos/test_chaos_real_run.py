"""A campaign on real processes, short: faults fire, the cluster recovers, the books hold, nothing is left."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from chaos.netns import why_not

pytestmark = [
    pytest.mark.alone,
    pytest.mark.realprocess,
    pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}"),
    pytest.mark.timeout(300),
]

CAMPAIGN = """\
on = "processes"
name = "short"
faults = 3
minutes = 4
pause_s = [0.0, 0.2]
steps_left = 4
recover_within_s = 100
paths = ["one_for_one"]
[weights]
kill_process = 1
reset = 1
bad_link = 1
[fleet]
preemptible = 1
[job]
job = { name = "chaos", steps = 14 }
model = { warm_start = { steps = 0 } }
task = { train_problems = 64, heldout_problems = 4 }
rollout = { prompts = 4, samples = 4, max_new_tokens = 96 }
engine = { slots = 8 }
seeding = { initial_s = 0, max_s = 0 }
fleet = { n_prem_max = 1, restarts = 60 }
"""
SEED = 5
COMMAND = (sys.executable, "-m", "chaos.commands.chaos")


def naming(root: Path) -> list[str]:
    """Processes whose command line names the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if any(str(root) in word for word in words) and process.pid != os.getpid():
            found.append(" ".join(words))
    return found


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    file = tmp_path / "short.toml"
    file.write_text(CAMPAIGN)
    return file


def test_a_campaign_breaks_real_processes_sees_them_recover_and_leaves_nothing(
    campaign: Path, tmp_path: Path
) -> None:
    root = tmp_path / "out"
    argv = [*COMMAND, "run", str(campaign), "--seed", str(SEED), "--out", str(root), "--plain"]
    done = subprocess.run(
        [*argv, "--json", str(tmp_path / "told.json")],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["ok"], told["violations"], told["invalid"]) == (True, [], [])
    assert told["fired"] == {"kill_process": 1, "bad_link": 1, "reset": 1}
    assert all(
        one["recovered_s"] is not None and one["evidence"] for one in told["faults"] if not one["missed"]
    )
    assert told["paths"]["one_for_one"] >= 1
    assert all(job["exit_code"] == 0 and job["steps"] == 14 for job in told["jobs"])
    assert {one["kind"] for one in told["recovery"]} == {"kill_process", "bad_link", "reset"}
    assert "every invariant held" in done.stdout
    assert "<svg" in (root / "chaos.html").read_text()
    assert naming(root) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_a_campaign_nothing_of_it_is_left(
    campaign: Path, tmp_path: Path, number: signal.Signals
) -> None:
    root = tmp_path / "out"
    argv = [*COMMAND, "run", str(campaign), "--out", str(root), "--plain"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: sum("nodeagent" in words for words in naming(root)) >= 3 or process.poll() is not None)
    assert process.poll() is None
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGKILL: -9}[number], said
    if number is signal.SIGINT:
        assert "stopped on request" in said
        assert (root / "kept" / "head").is_dir()  # to be read: the disks of the hosts are gone
        assert naming(root) == []
    until(lambda: not naming(root))


def until(condition: Callable[[], object], limit_s: float = 100.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
