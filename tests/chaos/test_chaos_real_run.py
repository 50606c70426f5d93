"""Interrupted campaigns on real processes: nothing of them is left.

`tests/e2e/test_e2e_chaos.py` runs whole ones.
"""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gleaner.chaos.netns import why_not
from gleaner.chaos.orphans import naming

pytestmark = [
    pytest.mark.alone,
    pytest.mark.realprocess,
    pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}"),
    pytest.mark.timeout(900),
]

CAMPAIGN = 'on = "processes"\nname = "short"\n[weights]\nkill_process = 1\n[fleet]\npreemptible = 1\n'
COMMAND = (sys.executable, "-m", "gleaner.chaos.commands.chaos")


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    file = tmp_path / "short.toml"
    file.write_text(CAMPAIGN)
    return file


@pytest.mark.long
def test_interrupted_campaign_leaves_nothing_behind(campaign: Path, tmp_path: Path) -> None:
    ends = {signal.SIGINT: 130, signal.SIGKILL: -9}  # side by side, each in its own namespaces
    roots = {number: tmp_path / number.name for number in ends}
    processes = {
        number: subprocess.Popen(
            [*COMMAND, "run", str(campaign), "--out", str(root), "--plain"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number, root in roots.items()
    }
    try:
        for number, process in processes.items():
            until(lambda: len(agents(roots[number])) >= 3 or process.poll() is not None)  # noqa: B023
            assert process.poll() is None
            process.send_signal(number)
        for number, process in processes.items():
            output, _ = process.communicate(timeout=400)
            assert process.returncode == ends[number], output
            if number is signal.SIGINT:
                assert "stopped on request" in output
                kept = roots[number] / "kept" / "head"
                assert kept.is_dir()  # to be read: the disks of the hosts are gone
                assert list(naming(roots[number])) == []
        until(lambda: not [left for root in roots.values() for left in naming(root)])
    finally:
        for process in processes.values():
            process.kill()


def agents(root: Path) -> list[psutil.Process]:
    """The node agents of a campaign."""
    found = []
    for process in naming(root):
        with contextlib.suppress(psutil.Error):
            if "gleaner.nodeagent" in process.cmdline():
                found.append(process)
    return found


def until(condition: Callable[[], object], limit_s: float = 400.0) -> None:
    """Wait, also on a machine with a tenth of a core for each of a dozen starting processes."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
