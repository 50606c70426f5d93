"""The campaign that every change has to pass, on real processes: at least ten faults of six kinds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.netns import why_not

pytestmark = [
    pytest.mark.alone,
    pytest.mark.realprocess,
    pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}"),
    pytest.mark.timeout(1200),
]
SEED = 1


def test_the_ci_campaign_breaks_ten_things_of_six_kinds_and_every_invariant_holds(tmp_path: Path) -> None:
    file, root = tmp_path / "told.json", tmp_path / "out"
    argv = [sys.executable, "-m", "chaos.commands.chaos", "run", "real-ci", "--seed", str(SEED), "--plain"]
    done = subprocess.run(
        [*argv, "--json", str(file), "--out", str(root)],
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(file.read_text())
    assert (told["ok"], told["violations"], told["invalid"]) == (True, [], [])
    assert sum(told["fired"].values()) >= 10
    assert len(told["fired"]) >= 6
    assert all(one["recovered_s"] is not None for one in told["faults"] if not one["missed"])
    assert all(job["exit_code"] == 0 and not job["violations"] for job in told["jobs"])
